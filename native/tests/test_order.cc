#include "order.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "submit.h"

using namespace rig;

namespace {

Ref<Region> made(uint64_t nbytes = 64) {
  Error err;
  return Region::alloc(host_device(), nbytes, 0, err);
}

Timeline& fresh(const char* name = "made") { return *new Timeline(name); }

void stamp(const Ref<Region>& region, Use use, Timeline& timeline, uint64_t value) {
  const Named named{region.get(), use};
  Order::stamp(&named, 1, &timeline, value);
}

// What work of `self` on the region would wait for, as the value on each of the timelines, 0 for none.
std::vector<uint64_t> waits(const Ref<Region>& region, Use use, const Timeline* self, const std::vector<Timeline*>& timelines) {
  const Named named{region.get(), use};
  WaitList list;
  Order::gather(&named, 1, self, list);
  std::vector<uint64_t> values(timelines.size());
  size_t found = 0;
  for (const rig_point& p : list.points()) {
    for (size_t i = 0; i < timelines.size(); ++i) {
      if (p.timeline == timelines[i]) {
        values[i] = p.value;
        ++found;
      }
    }
  }
  CHECK(found == list.points().size());
  return values;
}

using Values = std::vector<uint64_t>;

Ref<Device> memory(const char* name, double delay = 0, int64_t fail_at = 0) {
  MemoryDeviceOptions options;
  options.name = name;
  options.delay = delay;
  options.fail_at = fail_at;
  return make_memory_device(options);
}

bool move(const Ref<Region>& src, const Ref<Region>& dst, Stamp& point, Error& err) {
  WaitList list;
  return submit_move({src, 0}, {dst, 0}, src->nbytes(), list, nullptr, point, err);
}

}  // namespace

TEST(order_a_wait_list_keeps_the_greatest_per_timeline) {
  Timeline& a = fresh();
  Timeline& b = fresh();
  WaitList list;
  CHECK(list.empty());
  list.add(&a, 3);
  list.add(&b, 1);
  list.add(&a, 2);
  list.add(&b, 7);
  CHECK(list.points().size() == 2);
  CHECK(list.points()[0].timeline == &a && list.points()[0].value == 3);
  CHECK(list.points()[1].timeline == &b && list.points()[1].value == 7);
}

TEST(order_reads_follow_the_last_write_and_not_each_other) {
  Timeline& a = fresh();
  Timeline& b = fresh();
  Timeline& c = fresh();
  const Ref<Region> region = made();
  CHECK((waits(region, Use::write, &c, {&a, &b}) == Values{0, 0}));
  stamp(region, Use::write, a, 1);
  CHECK((waits(region, Use::read, &b, {&a, &b}) == Values{1, 0}));
  stamp(region, Use::read, b, 1);
  CHECK((waits(region, Use::read, &c, {&a, &b}) == Values{1, 0}));
  CHECK((waits(region, Use::write, &c, {&a, &b}) == Values{1, 1}));
  a.reach(1);
  CHECK((waits(region, Use::read, &c, {&a, &b}) == Values{0, 0}));
  CHECK((waits(region, Use::write, &c, {&a, &b}) == Values{0, 1}));
}

TEST(order_a_write_follows_every_use_since_the_last) {
  Timeline& a = fresh();
  Timeline& b = fresh();
  Timeline& c = fresh();
  const Ref<Region> region = made();
  stamp(region, Use::read, a, 1);
  stamp(region, Use::read, a, 4);
  stamp(region, Use::read, b, 2);
  CHECK((waits(region, Use::write, &c, {&a, &b, &c}) == Values{4, 2, 0}));
  stamp(region, Use::write, c, 9);
  CHECK((waits(region, Use::write, &a, {&a, &b, &c}) == Values{0, 0, 9}));  // which follows the rest
}

TEST(order_a_devices_own_work_is_its_order) {
  Timeline& a = fresh();
  const Ref<Region> region = made();
  stamp(region, Use::read, a, 2);
  CHECK((waits(region, Use::write, &a, {&a}) == Values{0}));
  stamp(region, Use::write, a, 3);
  CHECK((waits(region, Use::read, &a, {&a}) == Values{3}));  // listed to be checked for failure, not waited for
  CHECK((waits(region, Use::read, nullptr, {&a}) == Values{3}));
}

TEST(order_unordered_uses_wait_for_nothing_and_are_waited_for_by_nothing) {
  Timeline& a = fresh();
  Timeline& b = fresh();
  const Ref<Region> region = made();
  stamp(region, Use::write, a, 1);
  CHECK((waits(region, Use::unordered, &b, {&a}) == Values{0}));
  stamp(region, Use::unordered, b, 5);
  CHECK((waits(region, Use::write, nullptr, {&a, &b}) == Values{1, 0}));
}

// spec: R-lost
TEST(order_work_that_failed_is_found_by_what_reads_it) {
  Timeline& a = fresh("a");
  const Ref<Region> region = made(), other = made();
  stamp(region, Use::write, a, 1);
  stamp(other, Use::write, a, 2);
  a.fail(1, "no input");
  a.reach(2);
  Error err;
  CHECK(!region->wait_idle(false, nullptr, err));
  CHECK(err.code == Code::lost && err.message == "a: submission 1 was not done: no input");
  CHECK(other->wait_idle(false, nullptr, err));
}

TEST(order_copies_between_devices_follow_each_other) {
  const Ref<Device> a = memory("a", 0.002), b = memory("b");
  Ref<Region> here = made(), there = made(), last = made();
  Error err;
  Stamp point;
  Ref<Region> on_a = Region::alloc(a, 64, 0, err), on_b = Region::alloc(b, 64, 0, err);
  for (int round = 0; round < 30; ++round) {
    std::memset(here->host(), round, 64);
    CHECK(move(here, on_a, point, err) && point.timeline == &a->timeline());
    CHECK(move(on_a, on_b, point, err));  // the source's device makes it
    CHECK(point.timeline == &a->timeline());
    CHECK(move(on_b, there, point, err) && point.timeline == &b->timeline());
    CHECK(there->wait_idle(false, nullptr, err));
    for (int i = 0; i < 64; ++i) CHECK(there->host()[i] == round);
    CHECK(here->wait_idle(true, nullptr, err));
  }
  CHECK(move(there, last, point, err) && point.timeline == &host_device()->timeline());
  CHECK(std::memcmp(there->host(), last->host(), 64) == 0);
}

// spec: R-lost
TEST(order_work_that_waits_for_a_lost_device_fails_and_so_does_what_follows) {
  const Ref<Device> a = memory("a", 0.05, 2), b = memory("b"), c = memory("c");
  Error err;
  Ref<Region> on_a = Region::alloc(a, 64, 0, err), on_b = Region::alloc(b, 64, 0, err), on_c = Region::alloc(c, 64, 0, err);
  Ref<Region> before = made(), plain = made();
  Stamp first, second, third, fourth;
  CHECK(move(on_a, before, first, err));   // a 1: is done
  CHECK(move(on_a, on_b, second, err));    // a 2: the device is lost there
  CHECK(move(on_b, on_c, third, err));     // b 1: waits for a 2
  CHECK(move(on_c, plain, fourth, err));   // c 1: waits for b 1
  CHECK(first.timeline->wait(first.value, -1, nullptr) == Reach::reached);
  CHECK(second.timeline->wait(second.value, -1, nullptr) == Reach::lost);
  CHECK(third.timeline == &b->timeline() && third.timeline->wait(third.value, -1, nullptr) == Reach::lost);
  CHECK(fourth.timeline == &c->timeline() && fourth.timeline->wait(fourth.value, -1, nullptr) == Reach::lost);
  CHECK(a->timeline().lost() && !b->timeline().lost() && !c->timeline().lost());
  lost_error(c->timeline(), fourth.value, err);
  CHECK(err.message.find("c: submission 1 was not done: b: submission 1 was not done: a: the device is lost") == 0);
  CHECK(before->wait_idle(false, nullptr, err));  // its point was reached: ordinary memory
  CHECK(!plain->wait_idle(false, nullptr, err) && err.code == Code::lost);
  CHECK(!move(on_b, before, first, err) || first.timeline->wait(first.value, -1, nullptr) == Reach::lost);
  Ref<Region> clean = Region::alloc(b, 64, 0, err);
  CHECK(move(clean, before, first, err) && first.timeline->wait(first.value, -1, nullptr) == Reach::reached);
}

// spec: R-lost
TEST(order_memory_of_a_closed_device_is_lost_to_others) {
  const Ref<Device> a = memory("a"), b = memory("b");
  Error err;
  Stamp point;
  Ref<Region> on_a = Region::alloc(a, 64, 0, err), on_b = Region::alloc(b, 64, 0, err), plain = made();
  CHECK(move(on_b, plain, point, err));
  a->close();
  for (const Ref<Region>& other : {on_b, plain}) {
    CHECK(!move(on_a, other, point, err) && err.code == Code::lost && err.device == "a");
    CHECK(!move(other, on_a, point, err) && err.code == Code::lost && err.device == "a");
  }
  CHECK(move(on_b, plain, point, err));
}

// Closing while others submit: every submission either is done or is lost, and none hangs or leaks.
TEST(order_closing_under_submissions) {
  for (int round = 0; round < 20; ++round) {
    const Ref<Device> a = memory("a"), b = memory("b");
    Error err;
    Ref<Region> from = Region::alloc(a, 64, 0, err), to = Region::alloc(b, 64, 0, err);
    std::vector<std::thread> threads;
    std::atomic<int> refused{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (;;) {
          Stamp point;
          Error e;
          if (!move(from, to, point, e)) {
            if (e.code == Code::lost && e.message.find("a: the device is lost: it was closed") == 0) ++refused;
            return;
          }
          point.timeline->wait(point.value, -1, nullptr);
        }
      });
    }
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
    a->close();
    for (std::thread& t : threads) t.join();
    CHECK(refused == 3);
  }
}
