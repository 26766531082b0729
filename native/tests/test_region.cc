#include "region.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "order.h"
#include "submit.h"

using namespace rig;

namespace {

Ref<Device> memory(const char* name, double delay = 0, uint64_t nbytes = UINT64_MAX, bool borrows = true, int64_t fail_at = 0) {
  MemoryDeviceOptions options;
  options.name = name;
  options.delay = delay;
  options.nbytes = nbytes;
  options.borrows = borrows;
  options.fail_at = fail_at;
  return make_memory_device(options);
}

Ref<Region> made(const Ref<Device>& device, uint64_t nbytes) {
  Error err;
  Ref<Region> region = Region::alloc(device, nbytes, 0, err);
  CHECK(region);
  return region;
}

Timeline& fresh() { return *new Timeline("made"); }

void stamp(const Ref<Region>& region, Use use, Timeline& timeline, uint64_t value) {
  const Named named{region.get(), use};
  Order::lock().lock();
  Order::stamp(&named, 1, &timeline, value);
  Order::lock().unlock();
}

// Host memory whose owner counts how often it is let go.
struct Owner {
  std::atomic<int> drops{0};
  uint8_t bytes[64] = {};
  Ref<Region> region() {
    return Region::wrap(host_device(), bytes, sizeof bytes, true, this, [](void* o) { ++static_cast<Owner*>(o)->drops; });
  }
};

bool has(const Error& err, Code code, const char* text) { return err.code == code && err.message.find(text) != std::string::npos; }

}  // namespace

// spec: R-oom
TEST(region_counts_memory_and_gives_it_back) {
  const Ref<Device> device = memory("mem");
  const uint64_t before = device->in_use();
  {
    const Ref<Region> a = made(device, 1000), b = made(device, 0), c = made(device, 100'000);
    CHECK(device->in_use() == before + 101'000);
    CHECK(c->nbytes() == 100'000 && c->writable() && c->live() && c->host() != nullptr);
    for (int i = 0; i < 1000; ++i) CHECK(a->host()[i] == 0);
  }
  CHECK(device->in_use() == before);
}

// spec: R-oom
TEST(region_over_the_limit_is_out_of_memory) {
  const Ref<Device> device = memory("small", 0, 1000);
  Ref<Region> a = made(device, 600);
  Error err;
  CHECK(!Region::alloc(device, 500, 0, err));
  CHECK(has(err, Code::out_of_memory, "small: out of memory: 500 bytes asked for, the device has 1000"));
  CHECK(err.device == "small" && err.nbytes == 500);
  CHECK(device->in_use() == 600);
  a = {};
  CHECK(Region::alloc(device, 1000, 0, err));
  device->set_budget(100);
  Error over;
  CHECK(!Region::alloc(device, 101, 0, over));
  CHECK(has(over, Code::out_of_memory, "101 bytes asked for") && over.device == "small" && over.nbytes == 101);
  CHECK(Region::alloc(device, 100, 0, over));
  Error huge;
  CHECK(!Region::alloc(host_device(), uint64_t{1} << 60, 0, huge));
  CHECK(has(huge, Code::out_of_memory, "host: out of memory"));
}

// spec: R-oom
TEST(region_memory_in_flight_counts_until_it_is_over) {
  const Ref<Device> device = memory("small", 0, 1000);
  Timeline& other = fresh();
  Ref<Region> a = made(device, 1000);
  stamp(a, Use::read, other, 1);
  a = {};
  Error err;
  CHECK(!Region::alloc(device, 1, 0, err));
  CHECK(err.code == Code::out_of_memory);
  other.reach(1);
  CHECK(Region::alloc(device, 1000, 0, err));
}

TEST(region_outlives_its_last_name_until_its_work_is_over) {
  Owner owner;
  Timeline& timeline = fresh();
  for (const Use use : {Use::read, Use::write, Use::unordered}) {
    owner.drops = 0;
    const uint64_t value = timeline.next();
    Ref<Region> region = owner.region();
    stamp(region, use, timeline, value);
    region = {};
    collect_regions();
    CHECK(owner.drops == 0);
    timeline.reach(value);
    collect_regions();
    CHECK(owner.drops == 1);
  }
  owner.region();
  CHECK(owner.drops == 2);  // without work: at once
}

// spec: R-lost
TEST(region_of_a_lost_device_returns) {
  Owner owner;
  Timeline& timeline = fresh();
  Ref<Region> region = owner.region();
  stamp(region, Use::write, timeline, timeline.next());
  region = {};
  timeline.lose("it broke");
  collect_regions();
  CHECK(owner.drops == 1);
}

// spec: R-buffer-dead
TEST(region_freed_is_dead_at_once_and_returns_after_pins_and_work) {
  Owner owner;
  Timeline& timeline = fresh();
  const Ref<Region> region = owner.region();
  stamp(region, Use::write, timeline, 1);
  region->pin();
  region->free_now("it was freed");
  region->free_now("a second time");
  CHECK(!region->live() && region->dead_reason() == "it was freed");
  collect_regions();
  CHECK(owner.drops == 0);
  timeline.reach(1);
  collect_regions();
  CHECK(owner.drops == 0);  // pinned still
  region->unpin();
  collect_regions();
  CHECK(owner.drops == 1);
  collect_regions();
  CHECK(owner.drops == 1);
}

// spec: R-buffer-dead
TEST(region_freed_refuses_work) {
  const Ref<Device> device = memory("mem");
  const Ref<Region> a = made(device, 64), b = made(device, 64);
  a->free_now("it was freed");
  WaitList waits;
  Stamp point;
  Error err;
  CHECK(!submit_move({a, 0}, {b, 0}, 64, waits, nullptr, point, err));
  CHECK(has(err, Code::invalid, "a buffer it names is dead: it was freed"));
  CHECK(!submit_move({b, 0}, {a, 0}, 64, waits, nullptr, point, err));
  Error held;
  CHECK(!a->hold(held) && has(held, Code::invalid, "the buffer is dead: it was freed"));
  CHECK(!a->exclude(held));
}

TEST(region_claims_exclude_each_other) {
  const Ref<Region> region = made(host_device(), 64);
  Error err;
  CHECK(region->hold(err) && region->hold(err));
  CHECK(!region->exclude(err) && has(err, Code::invalid, "2 shared holds"));
  region->unhold();
  region->unhold();
  CHECK(region->exclude(err));
  CHECK(!region->exclude(err) && has(err, Code::invalid, "held exclusive already"));
  CHECK(!region->hold(err) && has(err, Code::invalid, "held exclusive"));
  region->unexclude();
  CHECK(region->hold(err));
  CHECK(!region->consume("why", err) && has(err, Code::invalid, "needs an exclusive claim"));
  region->unhold();
}

TEST(region_reached_from_outside_is_never_exclusive) {
  Owner owner;
  Error err;
  const Ref<Region> wrapped = owner.region();
  CHECK(!wrapped->exclude(err) && has(err, Code::invalid, "outside rig"));
  const Ref<Region> region = made(host_device(), 64);
  region->lend();
  CHECK(!region->exclude(err) && has(err, Code::invalid, "exported"));
  region->unlend();
  CHECK(region->exclude(err));
  region->lend();
  CHECK(!region->consume("why", err) && has(err, Code::invalid, "exported"));
  region->unlend();
  CHECK(region->consume("why", err));
}

TEST(region_consumed_is_dead_and_its_heir_has_all_of_it) {
  const Ref<Device> device = memory("mem"), other = memory("other");
  const uint64_t before = device->in_use();
  Ref<Region> region = made(device, 64);
  rig_memory mapped{};
  Error err;
  CHECK(region->map(other, mapped, err));
  Timeline& timeline = fresh();
  stamp(region, Use::write, timeline, 1);
  std::memcpy(region->host(), "heirloom", 8);
  CHECK(region->exclude(err));
  Ref<Region> heir = region->consume("it was donated", err);
  CHECK(heir && heir->live() && !region->live() && region->dead_reason() == "it was donated");
  CHECK(heir->host() == region->memory().host && std::memcmp(heir->host(), "heirloom", 8) == 0);
  CHECK(device->in_use() == before + 64);
  Named named{heir.get(), Use::read};
  WaitList waits;
  Order::gather(&named, 1, nullptr, waits);
  CHECK(waits.points().size() == 1 && waits.points()[0].timeline == &timeline);
  region = {};
  CHECK(device->in_use() == before + 64);
  timeline.reach(1);
  heir = {};
  CHECK(device->in_use() == before);
}

TEST(region_consumed_under_a_call_stays_in_place) {
  const Ref<Device> device = memory("mem");
  const uint64_t before = device->in_use();
  Ref<Region> region = made(device, 64);
  Error err;
  region->pin();  // a call of another thread
  CHECK(region->exclude(err));
  Ref<Region> heir = region->consume("first", err);
  CHECK(heir && heir->exclude(err));
  Ref<Region> last = heir->consume("second", err);
  heir = {};
  last->free_now("it was freed");
  last = {};
  collect_regions();
  CHECK(device->in_use() == before + 64);
  region->unpin();
  collect_regions();
  CHECK(device->in_use() == before);
}

TEST(region_maps_once_per_device_and_is_refused_with_a_reason) {
  const Ref<Device> a = memory("a"), shut = memory("shut", 0, UINT64_MAX, false);
  const Ref<Region> host = made(host_device(), 64), own = made(shut, 64);
  rig_memory first{}, second{};
  Error err;
  CHECK(host->map(a, first, err) && host->map(a, second, err));
  CHECK(first.address == second.address && first.host == host->host());
  CHECK(!host->map(shut, first, err) && has(err, Code::refused, "shut: it borrows no memory of other devices, here of host"));
  CHECK(!own->map(a, first, err) && has(err, Code::refused, "a: it cannot borrow memory of shut, which the host does not address"));
  CHECK(own->map(shut, first, err) && first.address == own->memory().address);
  a->close();
  const Ref<Region> late = made(host_device(), 64);
  CHECK(!late->map(a, first, err) && err.code == Code::lost && err.device == "a");
}

TEST(region_pieces_live_on_their_own_and_keep_the_whole) {
  const uint64_t before = host_device()->in_use();
  Ref<Region> whole = made(host_device(), 4096);
  Ref<Region> a = Region::piece(whole, 0, 64), b = Region::piece(whole, 64, 4000);
  CHECK(a->host() + 64 == b->host() && b->nbytes() == 4000);
  whole = {};
  Timeline& timeline = fresh();
  stamp(b, Use::write, timeline, 1);
  Error err;
  CHECK(a->wait_idle(true, nullptr, err));  // a piece's work is its own
  a->free_now("it was freed");
  CHECK(b->live());
  a = {};
  b = {};
  CHECK(host_device()->in_use() == before + 4096);
  timeline.reach(1);
  collect_regions();
  CHECK(host_device()->in_use() == before);
}

TEST(region_waits_for_writes_to_read_and_for_all_uses_to_write) {
  Timeline& writer = fresh();
  Timeline& reader = fresh();
  const Ref<Region> region = made(host_device(), 64);
  Error err;
  CHECK(region->wait_idle(true, nullptr, err));
  stamp(region, Use::write, writer, 1);
  writer.reach(1);
  stamp(region, Use::read, reader, 1);
  CHECK(region->wait_idle(false, nullptr, err));
  std::thread later([&] {
    const timespec nap{0, 5'000'000};
    nanosleep(&nap, nullptr);
    reader.reach(1);
  });
  CHECK(region->wait_idle(true, nullptr, err));
  CHECK(reader.reached(1));
  later.join();
  stamp(region, Use::write, writer, 2);
  writer.lose("it broke");
  CHECK(!region->wait_idle(false, nullptr, err) && has(err, Code::lost, "made: the device is lost: it broke"));
}

// Many threads make, use, free and drop memory of devices that work on it.
TEST(region_storm) {
  const Ref<Device> a = memory("a"), b = memory("b");
  const uint64_t before[] = {a->in_use(), b->in_use()};
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        Ref<Region> from = made((i + t) % 2 ? a : b, 256), to = made(i % 3 ? a : host_device(), 256);
        std::memset(from->host(), i & 255, 256);
        WaitList waits;
        Stamp point;
        Error err;
        if (!submit_move({from, 0}, {to, 0}, 256, waits, nullptr, point, err)) ++wrong;
        if (i % 4 == 0) from->free_now("it was freed");
        if (i % 4 == 1) from = {};
        if (i % 2 == 0) {
          if (!to->wait_idle(false, nullptr, err) || to->host()[i % 256] != (i & 255)) ++wrong;
        } else {
          to->free_now("it was freed");
        }
        if (i % 8 == 0) collect_regions();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  for (const Ref<Device>& d : {a, b}) d->timeline().wait(d->timeline().submitted(), -1, nullptr);
  for (int i = 0; i < 1000 && (a->in_use() != before[0] || b->in_use() != before[1]); ++i) {
    collect_regions();  // a queue lets go of finished work a moment after its point
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
  }
  CHECK(a->in_use() == before[0] && b->in_use() == before[1]);
}
