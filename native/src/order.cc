#include "order.h"

#include <algorithm>

namespace rig {

void WaitList::add(Timeline* timeline, uint64_t value) {
  for (rig_point& p : points_) {
    if (p.timeline == timeline) {
      p.value = std::max(p.value, value);
      return;
    }
  }
  points_.push_back({timeline, value});
}

ForkLock& Order::lock() {
  static ForkLock lock;
  return lock;
}

void Order::gather(const Named* named, size_t count, const Timeline* self, WaitList& waits) {
  const auto pending = [](const Stamp& s) {
    return s.timeline && (!s.timeline->reached(s.value) || s.timeline->any_failed());
  };
  for (size_t i = 0; i < count; ++i) {
    Region& r = *named[i].region;
    if (named[i].use == Use::unordered || !r.stamped_.load(std::memory_order_relaxed)) continue;
    if (pending(r.last_write_)) waits.add(r.last_write_.timeline, r.last_write_.value);
    if (named[i].use != Use::write) continue;
    for (const Stamp& s : r.uses_) {
      if (s.timeline != self && !s.timeline->reached(s.value)) waits.add(s.timeline, s.value);
    }
  }
}

void Order::stamp(const Named* named, size_t count, Timeline* self, uint64_t value) {
  for (size_t i = 0; i < count; ++i) {
    Region& r = *named[i].region;
    if (named[i].use == Use::unordered) {
      keep(&r, self, value);
      continue;
    }
    r.stamped_.store(true, std::memory_order_release);
    if (named[i].use == Use::write) {
      // This write follows every use so far, so that following it is enough from now on.
      r.uses_.clear();
      r.last_write_.value = value;
      if (r.last_write_.timeline != self) r.last_write_.timeline = self;
    }
    const auto mine = std::find_if(r.uses_.begin(), r.uses_.end(), [&](const Stamp& s) { return s.timeline == self; });
    if (mine != r.uses_.end()) {
      mine->value = value;
    } else {
      r.uses_.push_back({self, value});
    }
  }
}

void Order::keep(Region* region, Timeline* timeline, uint64_t value) {
  for (Stamp& s : region->keeps_) {
    if (s.timeline == timeline) {
      s.value = std::max(s.value, value);
      return;
    }
  }
  region->keeps_.push_back({timeline, value});
}

bool Order::wait_all(const WaitList& waits, Gate* gate, Error& err) {
  for (const rig_point& p : waits.points()) {
    Timeline& t = *static_cast<Timeline*>(p.timeline);
    switch (t.wait(p.value, -1, gate)) {
      case Reach::reached: break;
      case Reach::interrupted: return err.set(Code::interrupted, "interrupted");
      default: return lost_error(t, p.value, err);
    }
  }
  return true;
}

}  // namespace rig
