#include "timeline.h"

#include <algorithm>
#include <mutex>

#include "futex.h"
#include "host_info.h"

namespace rig {
namespace {
constexpr int64_t kSlice = 50'000'000;  // between two polls of the gate while waiting
constexpr uint32_t kSpins = 200;         // looks at a point before a queue's thread sleeps, some microseconds

std::atomic<Timeline*> newest{nullptr};

// On one core a look would only keep the other thread from its work.
uint32_t spins() {
  static const uint32_t n = usable_cores() > 1 ? kSpins : 0;
  return n;
}
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

void Timeline::ring() {
  // A sleeper counts itself, then looks; here the news is stored, then the sleepers are counted: one sees the other.
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    bell_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(bell_, INT32_MAX);
  }
}

void Timeline::reach(uint64_t value) {
  reached_.store(value, std::memory_order_seq_cst);
  ring();
}

void Timeline::lose(const std::string& reason) {
  {
    std::lock_guard lock(failed_lock_);
    if (lost_.load(std::memory_order_relaxed)) return;
    reason_ = reason;
    lost_.store(true, std::memory_order_seq_cst);
  }
  ring();
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
  } else if (spins() != 0) {
    // A queue's thread: the point is often a moment away, and a sleep and a wake cost more than that moment.
    for (uint32_t i = 0; i < spins(); ++i) {
      if (reached(value) || lost()) return settle(value);
      cpu_relax();
    }
  }
  const int64_t deadline = timeout_ns < 0 ? -1 : now_ns() + timeout_ns;
  for (;;) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    if (reached_.load(std::memory_order_seq_cst) < value && !lost()) {
      int64_t sleep = gate ? kSlice : -1;
      if (deadline >= 0) {
        const int64_t left = std::max<int64_t>(deadline - now_ns(), 0);
        sleep = sleep < 0 ? left : std::min(sleep, left);
      }
      futex_wait(bell_, bell, sleep);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
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
