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

void ForkLock::renew() {
  const uint32_t now = fork_generation();
  uint32_t seen = generation_.load(std::memory_order_acquire);
  // The first thread of a child that meets the lock frees it: the holder stayed in the parent.
  if (seen != now && generation_.compare_exchange_strong(seen, now, std::memory_order_acq_rel)) {
    state_.store(0, std::memory_order_release);
  }
}

bool ForkLock::try_lock() {
  renew();
  uint32_t free = 0;
  return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
}

void ForkLock::lock() {
  if (try_lock()) return;
  while (state_.exchange(2, std::memory_order_acquire) != 0) futex_wait(state_, 2, -1);
}

void ForkLock::unlock() {
  if (state_.exchange(0, std::memory_order_release) == 2) futex_wake(state_, 1);
}

}  // namespace rig
