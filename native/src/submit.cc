#include "submit.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace rig {
namespace {

constexpr uint64_t kDepth = 1024;         // submissions of a device in flight before its submitters wait
constexpr uint64_t kStage = 256 << 10;    // bytes of one piece of a staged move

// What a device's copy outside programs keeps alive.
class MoveKeep : public Keep {
 public:
  MoveKeep(const MoveEnd& src, const MoveEnd& dst) : src_(src.region), dst_(dst.region) {
    src_->pin();
    dst_->pin();
  }

 protected:
  ~MoveKeep() override {
    src_->unpin();
    dst_->unpin();
  }

 private:
  Ref<Region> src_, dst_;
};

// Copy through the host, at once; both ends are idle.
bool host_move(const MoveEnd& src, const MoveEnd& dst, uint64_t nbytes, Gate* gate, Error& err) {
  Region& s = *src.region;
  Region& d = *dst.region;
  if (s.host() && d.host()) {
    memmove(d.host() + dst.offset, s.host() + src.offset, nbytes);
    return true;
  }
  const auto stage = std::make_unique<uint8_t[]>(std::min(kStage, nbytes));
  char why[RIG_WHY] = "";
  for (uint64_t done = 0; done < nbytes;) {
    const uint64_t n = std::min(kStage, nbytes - done);
    const uint8_t* from = s.host() ? s.host() + src.offset + done : stage.get();
    if (!s.host()) {
      const auto result = s.device().table()->read(s.device().state(), &s.memory(), src.offset + done, stage.get(), n, why);
      if (!s.device().report(result, why, err)) return false;
    }
    if (d.host()) {
      memmove(d.host() + dst.offset + done, from, n);
    } else {
      const auto result = d.device().table()->write(d.device().state(), &d.memory(), dst.offset + done, from, n, why);
      if (!d.device().report(result, why, err)) return false;
    }
    done += n;
    if (gate && !gate->poll()) return err.set(Code::interrupted, "interrupted");
  }
  return true;
}

// The device that makes a move, or null for the host.
const Ref<Device>* choose_maker(const MoveEnd& src, const MoveEnd& dst, rig_memory& s, rig_memory& d) {
  for (const MoveEnd* end : {&src, &dst}) {
    const Ref<Device>& device = end->region->device_ref();
    if (device->is_host() || !device->can(RIG_CAN_COPY)) continue;
    Error unused;  // a device that does not reach an end leaves the move to the next
    if (src.region->map(device, s, unused) && dst.region->map(device, d, unused)) return &device;
  }
  return nullptr;
}

}  // namespace

bool submit_work(Device& device, rig_work& work, const Named* named, size_t count, WaitList& waits, Keep* keep, Gate* gate,
                 Error& err) {
  Timeline& timeline = device.timeline();
  // A queue without a bound would grow with the caller's lead.
  const uint64_t submitted = timeline.submitted();
  if (submitted > kDepth && !timeline.reached(submitted - kDepth)) {
    const Reach r = timeline.wait(submitted - kDepth, -1, gate);
    if (r == Reach::interrupted) return err.set(Code::interrupted, "interrupted");
  }
  ForkLock& order = Order::lock();
  if (!order.try_lock()) {
    if (gate) gate->release();
    order.lock();
  }
  bool ok = device.usable(err);
  for (size_t i = 0; ok && i < count; ++i) {
    const Region& region = *named[i].region;
    if (!region.live()) {
      ok = err.set(Code::invalid, "a buffer it names is dead: " + region.dead_reason());
    } else {
      ok = region.device().usable(err);  // memory of a lost device, though another one reaches it
    }
  }
  if (ok) {
    Order::gather(named, count, &timeline, waits);
    for (const rig_point& p : waits.points()) {
      const auto& t = *static_cast<const Timeline*>(p.timeline);
      if (&t != &timeline && ((t.lost() && !t.reached(p.value)) || !t.failure(p.value).empty())) {
        ok = lost_error(t, p.value, err);
        break;
      }
    }
  }
  if (ok) {
    work.waits = waits.points().data();
    work.wait_count = static_cast<uint32_t>(waits.points().size());
    work.value = timeline.next();
    work.keep = keep;
    keep->retain();
    Order::stamp(named, count, &timeline, work.value);
    char why[RIG_WHY] = "";
    const rig_result result = device.table()->submit(device.state(), &work, why);
    if (result != RIG_OK) {
      keep->release();
      timeline.lose(why);  // a number was given that no work will reach
      ok = result == RIG_LOST ? device.usable(err) : device.report(result, why, err);
    }
  }
  order.unlock();
  return ok;
}

bool submit_move(const MoveEnd& src, const MoveEnd& dst, uint64_t nbytes, WaitList& waits, Gate* gate, Stamp& point,
                 Error& err) {
  const Named named[2] = {{src.region.get(), Use::read}, {dst.region.get(), Use::write}};
  rig_memory s{}, d{};
  if (const Ref<Device>* maker = choose_maker(src, dst, s, d)) {
    rig_part part{};
    part.kind = RIG_COPY;
    part.src = {s.object, s.address + src.offset, src.offset};
    part.dst = {d.object, d.address + dst.offset, dst.offset};
    part.length = nbytes;
    rig_work work{};
    work.parts = &part;
    work.part_count = 1;
    Ref<MoveKeep> keep(new MoveKeep(src, dst));
    if (!submit_work(**maker, work, named, 2, waits, keep.get(), gate, err)) return false;
    point = {&(*maker)->timeline(), work.value};
    return true;
  }
  {
    ForkLock& order = Order::lock();
    if (!order.try_lock()) {
      if (gate) gate->release();
      order.lock();
    }
    Order::gather(named, 2, nullptr, waits);
    order.unlock();
  }
  for (const Named& n : named) {
    if (!n.region->live()) return err.set(Code::invalid, "a buffer it names is dead: " + n.region->dead_reason());
    if (!n.region->device().usable(err)) return false;
  }
  if (!Order::wait_all(waits, gate, err)) return false;
  if (gate && nbytes > (256u << 10)) gate->release();
  if (!host_move(src, dst, nbytes, gate, err)) return false;
  const Ref<Device> host = host_device();
  point = {&host->timeline(), host->timeline().count_done()};
  return true;
}

}  // namespace rig
