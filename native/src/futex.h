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

// Sleep while word holds value, at most ns nanoseconds (no bound if negative), until a wake that shares a bit. May return
// early.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t ns, uint32_t bits = UINT32_MAX) {
  timespec t{};
  if (ns >= 0) {
    const int64_t until = now_ns() + ns;  // this form takes a time of the monotonic clock
    t.tv_sec = until / 1000000000;
    t.tv_nsec = until % 1000000000;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, value, ns >= 0 ? &t : nullptr, nullptr, bits);
}

// Wake at most count sleepers that share a bit.
inline void futex_wake(std::atomic<uint32_t>& word, int count, uint32_t bits = UINT32_MAX) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET_PRIVATE, count, nullptr, nullptr, bits);
}

}  // namespace rig
