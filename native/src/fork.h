// What survives a fork: a generation that a child's copy of the process counts up.
#pragma once

#include <atomic>
#include <cstdint>

namespace rig {

// The number of forks between the first process that loaded the core and this one.
uint32_t fork_generation();

// Installs the handlers once; called by everything that makes threads or takes process-wide locks.
void watch_forks();

// Registers what a child must make new; called in the child, before fork returns there. `reset` must not lock.
void on_fork_child(void (*reset)());

// A lock whose holder may have been left behind by a fork: the child finds it free.
class ForkLock {
 public:
  bool try_lock();
  void lock();  // blocks without a bound; the holder never waits for a caller of lock
  void unlock();

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kWaited = 2, kMask = 3;
  static uint32_t own(uint32_t state) { return fork_generation() << 2 | state; }

  std::atomic<uint32_t> state_{kFree};  // the fork generation in which it was taken, and one of the above
};

}  // namespace rig
