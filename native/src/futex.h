// The kernel's wait and wake on a 32-bit word, and a monotonic clock.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace rig {

inline int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// Sleep while word holds value, at most ns nanoseconds (no bound if negative). May return early.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t ns) {
  timespec t{};
  if (ns >= 0) {
    t.tv_sec = ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, ns >= 0 ? &t : nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace rig
