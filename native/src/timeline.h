// A device's time: the number of submissions made and the number that are over, both only growing.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"
#include "fork.h"
#include "gate.h"

namespace rig {

enum class Reach { reached, timeout, lost, interrupted };

// Made with new and never freed: queues hold points of other devices, and a device leaves only its timeline behind.
class Timeline {
 public:
  explicit Timeline(std::string device_name);

  const std::string& device() const { return device_; }
  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  uint64_t reached() const { return reached_.load(std::memory_order_acquire); }
  bool reached(uint64_t value) const { return reached() >= value; }

  // The value of the next submission. One caller at a time (the order lock).
  uint64_t next() { return submitted_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  // Count work that is over already (the host's) and give its value.
  uint64_t count_done();

  void reach(uint64_t value);
  // Say on which core the thread runs that works this timeline off.
  void work_on(int core) { core_.store(core, std::memory_order_relaxed); }
  // The device is gone: wakes every waiter. The first reason stands.
  void lose(const std::string& reason);
  bool lost() const;
  std::string lost_reason() const;

  // Record that value's work was not done, because of `reason`.
  void fail(uint64_t value, const std::string& reason);
  bool any_failed() const { return failed_count_.load(std::memory_order_acquire) != 0; }
  // The reason why value's work was not done, or empty.
  std::string failure(uint64_t value) const;

  // Wait until value is reached, at most timeout_ns (no bound if negative). Reach::lost if it never will be, or was
  // reached without its work being done. gate may be null.
  Reach wait(uint64_t value, int64_t timeout_ns, Gate* gate);

  // Whether value is over, one way or the other, so that memory it used may go.
  bool over(uint64_t value) const { return reached(value) || lost(); }

 private:
  std::string device_;
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> reached_{0};
  std::atomic<uint32_t> bell_{0};
  std::atomic<uint32_t> wanted_{0};  // the values that sleepers wait for, modulo 32
  std::atomic<int> core_{-1};
  std::atomic<bool> lost_{false};
  uint32_t generation_;
  bool survives_fork_;
  std::atomic<uint32_t> failed_count_{0};
  mutable ForkLock failed_lock_;
  std::vector<std::pair<uint64_t, std::string>> failed_;
  std::string reason_;

  Timeline* older_;  // all there ever were stay reachable, so that a leak checker passes over them

  void ring(uint32_t values);  // wake the sleepers of these values; each says anew what it wants
  // How value ended, for a value that is reached, or of a device that is lost.
  Reach settle(uint64_t value) const;
  friend class Device;
};

// A point of completion: a device's timeline and a value on it.
struct Stamp {
  Timeline* timeline = nullptr;
  uint64_t value = 0;
};

// Fill err for a point that will never be reached, or whose work was not done.
bool lost_error(const Timeline& timeline, uint64_t value, Error& err);

}  // namespace rig
