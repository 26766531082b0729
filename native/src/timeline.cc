#include "timeline.h"

#include <sched.h>

#include <algorithm>
#include <mutex>

#include "futex.h"

namespace rig {
namespace {
constexpr int64_t kSlice = 50'000'000;  // between two polls of the gate while waiting
constexpr uint32_t kSpins = 200;         // looks at a point before a queue's thread sleeps, some microseconds

std::atomic<Timeline*> newest{nullptr};

uint32_t bit_of(uint64_t value) { return uint32_t{1} << (value % 32); }
}  // namespace

Timeline::Timeline(std::string device_name)
    : device_(std::move(device_name)), generation_(fork_generation()), survives_fork_(false),
      older_(newest.load()) {
  while (!newest.compare_exchange_weak(older_, this)) {
  }
}

uint64_t Timeline::count_done() {
  const uint64_t value = submitted_.fetch_add(1, std::memory_order_acq_rel) + 1;
  // The host's values are over when they are made, in any order of threads: keep the greatest.
  uint64_t seen = reached_.load(std::memory_order_relaxed);
  while (seen < value && !reached_.compare_exchange_weak(seen, value, std::memory_order_acq_rel)) {
  }
  return value;
}

void Timeline::ring(uint32_t values) {
  wanted_.fetch_and(~values, std::memory_order_seq_cst);
  bell_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell_, INT32_MAX, values);
}

void Timeline::reach(uint64_t value) {
  const uint64_t before = reached_.exchange(value, std::memory_order_seq_cst);
  // A sleeper says what it wants, then looks; here the news is stored, then the wish is read: one sees the other. Those
  // who wait for a later value sleep on: one who waits for the last step must not be woken at each.
  uint32_t values = UINT32_MAX;
  if (value - before < 32) {
    values = 0;
    for (uint64_t v = before + 1; v <= value; ++v) values |= bit_of(v);
  }
  if ((wanted_.load(std::memory_order_seq_cst) & values) != 0) ring(values);
}

void Timeline::lose(const std::string& reason) {
  {
    std::lock_guard lock(failed_lock_);
    if (lost_.load(std::memory_order_relaxed)) return;
    reason_ = reason;
    lost_.store(true, std::memory_order_seq_cst);
  }
  ring(UINT32_MAX);
}

bool Timeline::lost() const {
  return lost_.load(std::memory_order_seq_cst) || (!survives_fork_ && generation_ != fork_generation());
}

std::string Timeline::lost_reason() const {
  if (!lost_.load(std::memory_order_acquire)) return "it was opened before a fork and does not live in the child";
  std::lock_guard lock(failed_lock_);
  return reason_;
}

void Timeline::fail(uint64_t value, const std::string& reason) {
  std::lock_guard lock(failed_lock_);
  failed_.emplace_back(value, reason);
  failed_count_.store(static_cast<uint32_t>(failed_.size()), std::memory_order_release);
}

std::string Timeline::failure(uint64_t value) const {
  if (!any_failed()) return {};
  std::lock_guard lock(failed_lock_);
  const auto it = std::find_if(failed_.begin(), failed_.end(), [&](const auto& f) { return f.first == value; });
  return it == failed_.end() ? std::string() : it->second;
}

Reach Timeline::settle(uint64_t value) const {
  // Asked after the loss was seen: what the device reached before it was lost counts.
  if (!reached(value)) return Reach::lost;
  return any_failed() && !failure(value).empty() ? Reach::lost : Reach::reached;
}

Reach Timeline::wait(uint64_t value, int64_t timeout_ns, Gate* gate) {
  if (reached(value) || lost()) return settle(value);
  if (timeout_ns == 0) return Reach::timeout;
  if (gate) {
    gate->release();
  } else if (const int core = core_.load(std::memory_order_relaxed); core >= 0 && core != sched_getcpu()) {
    // A queue's thread: the point is often a moment away, and a sleep and a wake cost more than that moment. On the core
    // of the thread that makes it, a look would only keep it from its work.
    for (uint32_t i = 0; i < kSpins; ++i) {
      if (reached(value) || lost()) return settle(value);
      cpu_relax();
    }
  }
  const int64_t deadline = timeout_ns < 0 ? -1 : now_ns() + timeout_ns;
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    wanted_.fetch_or(bit_of(value), std::memory_order_seq_cst);  // after the bell was read: who takes the wish rings it
    if (reached_.load(std::memory_order_seq_cst) < value && !lost()) {
      int64_t sleep = gate ? kSlice : -1;
      if (deadline >= 0) {
        const int64_t left = std::max<int64_t>(deadline - now_ns(), 0);
        sleep = sleep < 0 ? left : std::min(sleep, left);
      }
      futex_wait(bell_, bell, sleep, bit_of(value));
    }
    if (reached(value) || lost()) return settle(value);
    if (gate && !gate->poll()) return Reach::interrupted;
    if (deadline >= 0 && now_ns() >= deadline) return Reach::timeout;
  }
}

bool lost_error(const Timeline& timeline, uint64_t value, Error& err) {
  err.device = timeline.device();
  const std::string failure = timeline.failure(value);
  if (!failure.empty()) {
    return err.set(Code::lost, timeline.device() + ": submission " + std::to_string(value) + " was not done: " + failure);
  }
  return err.set(Code::lost, timeline.device() + ": the device is lost: " + timeline.lost_reason());
}

}  // namespace rig
