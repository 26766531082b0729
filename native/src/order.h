// Ordering by memory: which points work must wait for, and what it leaves behind for later work.
#pragma once

#include <cstdint>
#include <vector>

#include "fork.h"
#include "region.h"

namespace rig {

struct Named {
  Region* region = nullptr;
  Use use = Use::read;
};

// Points to wait for, one per timeline, each the greatest value.
class WaitList {
 public:
  void clear() { points_.clear(); }
  void add(Timeline* timeline, uint64_t value);
  const std::vector<rig_point>& points() const { return points_; }
  bool empty() const { return points_.empty(); }

 private:
  std::vector<rig_point> points_;
};

// The order of all submissions of this process: compare stamps, number the work and stamp again, as one action. Two
// submissions over several regions could otherwise each come to wait for the other.
class Order {
 public:
  static ForkLock& lock();

  // With the lock held. `self` is the timeline that the work will be on: its own earlier work is its order, so that
  // only an unreached last write of it is listed, to be checked for failure.
  static void gather(const Named* named, size_t count, const Timeline* self, WaitList& waits);
  static void stamp(const Named* named, size_t count, Timeline* self, uint64_t value);

  // Without the lock: whether a region may have work of an asynchronous device on it.
  static bool stamped(const Region& region) { return region.stamped_.load(std::memory_order_acquire); }

  // Keep a region alive until a point that orders nothing.
  static void keep(Region* region, Timeline* timeline, uint64_t value);

  // Wait for every point from the calling thread. step is put into err.
  static bool wait_all(const WaitList& waits, Gate* gate, Error& err);
};

}  // namespace rig
