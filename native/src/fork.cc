#include "fork.h"

#include <pthread.h>

#include <mutex>

#include "futex.h"

namespace rig {
namespace {

std::atomic<uint32_t> generation{0};
constexpr int kMaxResets = 16;
void (*resets[kMaxResets])() = {};
std::atomic<int> reset_count{0};

void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < reset_count.load(std::memory_order_relaxed); ++i) resets[i]();
}

}  // namespace

uint32_t fork_generation() { return generation.load(std::memory_order_relaxed); }

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, in_child); });
}

void on_fork_child(void (*reset)()) {
  watch_forks();
  const int at = reset_count.load(std::memory_order_relaxed);
  if (at < kMaxResets) {
    resets[at] = reset;
    reset_count.store(at + 1, std::memory_order_release);
  }
}

bool ForkLock::try_lock() {
  const uint32_t free = own(kFree);
  uint32_t seen = state_.load(std::memory_order_relaxed);
  // What a lock holds from before a fork counts as free: the holder stayed in the parent.
  while ((seen & ~kMask) != free || seen == free) {
    if (state_.compare_exchange_weak(seen, own(kHeld), std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ForkLock::lock() {
  if (try_lock()) return;
  const uint32_t free = own(kFree), waited = own(kWaited);
  uint32_t seen = state_.load(std::memory_order_relaxed);
  for (;;) {
    if ((seen & ~kMask) != free || seen == free) {
      // Others may sleep still: the unlock that follows wakes one of them.
      if (state_.compare_exchange_weak(seen, waited, std::memory_order_acquire, std::memory_order_relaxed)) return;
    } else if (seen == waited || state_.compare_exchange_weak(seen, waited, std::memory_order_relaxed)) {
      futex_wait(state_, waited, -1);
      seen = state_.load(std::memory_order_relaxed);
    }
  }
}

void ForkLock::unlock() {
  if (state_.exchange(own(kFree), std::memory_order_release) == own(kWaited)) futex_wake(state_, 1);
}

}  // namespace rig
