#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "device.h"
#include "fork.h"
#include "futex.h"
#include "host_info.h"

namespace rig {
namespace {

constexpr int kSpins = 2000;  // of the caller before it sleeps for the last blocks

constexpr uint32_t kMostWorkers = 4096;
constexpr int64_t kLookoutNs = 200'000;  // a worker looks out for the next job of a run this long, then sleeps

class Pool {
 public:
  // Never destroyed: its threads are detached and outlive everything but the process.
  static Pool* get();
  static void drop();  // in a fork's child, where the threads do not exist

  bool try_run(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks, bool& woke);
  void enter_run() { busy_runs_.fetch_add(1, std::memory_order_relaxed); }
  void leave_run() { busy_runs_.fetch_sub(1, std::memory_order_relaxed); }
  uint32_t workers() const { return workers_.load(std::memory_order_acquire); }

 private:
  void grow(uint32_t workers);
  static void* enter(void* seat);
  void work(uint32_t index);
  bool spin(uint32_t bell) const;
  void place();
  bool claim_and_run(uint64_t ticket);

  // One job at a time; its fields are written before the ticket that publishes it.
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::atomic<uint64_t> ticket_{0};  // generation << 32 | next block
  std::atomic<HostFunction> function_{nullptr};
  std::atomic<const uint64_t*> words_{nullptr};
  std::atomic<uint64_t> iterations_{0};
  std::atomic<uint64_t> blocks_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint32_t> finished_{0};  // futex: counts jobs that are over
  std::atomic<uint32_t> bell_{0};      // futex: counts jobs published
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> workers_{0};
  std::atomic<uint32_t> busy_runs_{0};  // runs with enough split work that workers look out for it
  std::atomic<pid_t> threads_[kMostWorkers] = {};
  int placed_for_ = -1;  // the caller's core that the workers keep off; under busy_
};

// What a worker starts with; index i takes part while the host's threads are more than i + 1.
struct Seat {
  Pool* pool;
  uint32_t index;
};

std::atomic<Pool*> pool{nullptr};
std::atomic<uint32_t> wanted_threads{0};
ForkLock making;

Pool* Pool::get() {
  const uint32_t threads = host_threads();
  Pool* p = pool.load(std::memory_order_acquire);
  if (p && p->workers() + 1 >= threads) return p;
  making.lock();
  p = pool.load(std::memory_order_acquire);
  if (!p) {
    static std::atomic_flag watched = ATOMIC_FLAG_INIT;
    if (!watched.test_and_set()) on_fork_child(Pool::drop);
    p = new Pool();
    pool.store(p, std::memory_order_release);
  }
  p->grow(threads - 1);
  making.unlock();
  return p;
}

void Pool::drop() { pool.store(nullptr, std::memory_order_relaxed); }

void Pool::grow(uint32_t workers) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // workers inherit it: signals are for the threads that know Python
  for (uint32_t i = this->workers(); i < workers; ++i) {
    auto* seat = new Seat{this, i};
    pthread_t thread;
    if (pthread_create(&thread, nullptr, enter, seat) != 0) {
      delete seat;
      break;
    }
    pthread_setname_np(thread, "rig-pool");
    pthread_detach(thread);
    workers_.store(i + 1, std::memory_order_release);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void* Pool::enter(void* argument) {
  auto* seat = static_cast<Seat*>(argument);
  const Seat mine = *seat;
  delete seat;
  mine.pool->work(mine.index);
  return nullptr;
}

bool Pool::claim_and_run(uint64_t ticket) {
  const uint64_t blocks = blocks_.load(std::memory_order_relaxed);
  const uint64_t iterations = iterations_.load(std::memory_order_relaxed);
  const HostFunction function = function_.load(std::memory_order_relaxed);
  const uint64_t* words = words_.load(std::memory_order_relaxed);
  const uint64_t b = ticket & UINT32_MAX;
  if (b >= blocks) return false;
  // The claim holds only while the job whose fields were read is still the current one.
  if (!ticket_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel)) return true;
  const uint64_t begin = block_begin(b, iterations, blocks), end = block_begin(b + 1, iterations, blocks);
  if (begin < end) function(words, begin, end);
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == blocks) {
    finished_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(finished_, 1);
  }
  return true;
}

// Look out for the next job while a run has more of them to give: a sleep and a wake cost tens of microseconds.
bool Pool::spin(uint32_t bell) const {
  if (busy_runs_.load(std::memory_order_relaxed) == 0) return false;
  const int64_t until = now_ns() + kLookoutNs;
  do {
    for (int i = 0; i < 64; ++i) {
      if (bell_.load(std::memory_order_acquire) != bell) return true;
      cpu_relax();
    }
  } while (busy_runs_.load(std::memory_order_relaxed) != 0 && now_ns() < until);
  return false;
}

// Keep the workers off the caller's core: woken there, one would wait for the caller to sleep.
void Pool::place() {
  const int core = sched_getcpu();
  if (core < 0 || core == placed_for_) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  CPU_CLR(core, &mask);
  placed_for_ = core;
  if (CPU_COUNT(&mask) == 0) return;
  for (uint32_t i = 0; i < workers(); ++i) {
    const pid_t thread = threads_[i].load(std::memory_order_acquire);
    if (thread != 0) {
      sched_setaffinity(thread, sizeof mask, &mask);
    } else {
      placed_for_ = -1;  // it has not started yet: place it next time
    }
  }
}

void Pool::work(uint32_t index) {
  threads_[index].store(static_cast<pid_t>(syscall(SYS_gettid)), std::memory_order_release);
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    while (index + 1 < host_threads() && claim_and_run(ticket_.load(std::memory_order_acquire))) {
    }
    if (spin(bell)) continue;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(bell_, bell, -1);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

bool Pool::try_run(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks, bool& woke) {
  const uint32_t workers = this->workers(), wanted = host_threads() - 1;
  if (workers == 0 || wanted == 0 || blocks > UINT32_MAX - 1 || busy_.test_and_set(std::memory_order_acquire)) return false;
  const uint32_t finished = finished_.load(std::memory_order_acquire);
  // Close the last job's ticket before its fields change.
  const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(generation << 32 | UINT32_MAX, std::memory_order_release);
  function_.store(function, std::memory_order_relaxed);
  words_.store(words, std::memory_order_relaxed);
  iterations_.store(iterations, std::memory_order_relaxed);
  blocks_.store(blocks, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store((generation + 1) << 32, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_seq_cst);
  woke = sleepers_.load(std::memory_order_seq_cst) != 0;
  if (woke) {
    place();
    // Which sleeper a wake reaches is not known: where some are not to take part, all are woken.
    futex_wake(bell_, workers > wanted ? INT32_MAX : static_cast<int>(std::min<uint64_t>(blocks - 1, workers)));
  }
  while (claim_and_run(ticket_.load(std::memory_order_acquire))) {
  }
  for (int i = 0; done_.load(std::memory_order_acquire) < blocks; ++i) {
    if (i < kSpins) {
      cpu_relax();
    } else {
      futex_wait(finished_, finished, -1);
    }
  }
  busy_.clear(std::memory_order_release);
  return true;
}

}  // namespace

uint32_t pool_workers() {
  const Pool* p = pool.load(std::memory_order_acquire);
  return p ? p->workers() : 0;
}

bool pool_enter_run() {
  if (host_threads() <= 1) return false;
  Pool::get()->enter_run();
  return true;
}

void pool_leave_run() {
  // In a fork's child the pool that was entered may be gone.
  if (Pool* p = pool.load(std::memory_order_acquire)) p->leave_run();
}

void set_host_threads(uint32_t threads) { wanted_threads.store(threads, std::memory_order_release); }

uint32_t host_threads() {
  const uint32_t set = wanted_threads.load(std::memory_order_acquire);
  if (set != 0) return set;
  static const uint32_t by_default = [] {
    if (const char* text = getenv("RIG_THREADS")) {
      char* end = nullptr;
      const long n = strtol(text, &end, 10);
      if (end != text && *end == 0 && n >= 1 && n <= 4096) return static_cast<uint32_t>(n);
    }
    return usable_cores();
  }();
  return by_default;
}

void run_blocks(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks) {
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint64_t begin = block_begin(b, iterations, blocks), end = block_begin(b + 1, iterations, blocks);
    if (begin < end) function(words, begin, end);
  }
}

bool run_split(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks) {
  bool woke = false;
  if (blocks > 1 && host_threads() > 1 && Pool::get()->try_run(function, words, iterations, blocks, woke)) return woke;
  run_blocks(function, words, iterations, blocks);
  return false;
}

bool check_host_part(const rig_part& part, char* why) {
  if (part.kind != RIG_LAUNCH) return true;
  const auto& g = part.groups;
  const auto& t = part.threads;
  if (part.params_size % 8 != 0) {
    snprintf(why, RIG_WHY, "parameters of %llu bytes, host code takes a multiple of 8",
             static_cast<unsigned long long>(part.params_size));
    return false;
  }
  if (g[1] != 1 || g[2] != 1 || t[1] != 1 || t[2] != 1) {
    // Zero anywhere runs nothing, whatever stands beside it.
    for (int i = 0; i < 3; ++i) {
      if (g[i] == 0 || t[i] == 0) return true;
    }
    snprintf(why, RIG_WHY, "groups (%lld, %lld, %lld) of threads (%lld, %lld, %lld), host code runs (blocks, 1, 1) of (iterations, 1, 1)",
             static_cast<long long>(g[0]), static_cast<long long>(g[1]), static_cast<long long>(g[2]),
             static_cast<long long>(t[0]), static_cast<long long>(t[1]), static_cast<long long>(t[2]));
    return false;
  }
  if (g[0] > INT64_MAX || t[0] > INT64_MAX) {
    snprintf(why, RIG_WHY, "%lld blocks of %lld iterations, neither may be negative", static_cast<long long>(g[0]),
             static_cast<long long>(t[0]));
    return false;
  }
  if (part.shared != 0) {
    snprintf(why, RIG_WHY, "shared memory of %lld bytes, host code has none", static_cast<long long>(part.shared));
    return false;
  }
  return true;
}

}  // namespace rig
