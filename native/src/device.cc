#include "device.h"

#include <cstring>
#include <mutex>

#include "region.h"

namespace rig {
namespace {

void on_reach(void* timeline, uint64_t value) { static_cast<Timeline*>(timeline)->reach(value); }
void on_lose(void* timeline, const char* reason) { static_cast<Timeline*>(timeline)->lose(reason); }
void on_fail(void* timeline, uint64_t value, const char* reason) { static_cast<Timeline*>(timeline)->fail(value, reason); }
int on_wait(rig_point point) {
  return static_cast<Timeline*>(point.timeline)->wait(point.value, -1, nullptr) == Reach::reached ? 0 : 1;
}
void on_done(void* keep) { static_cast<Keep*>(keep)->release(); }

constexpr const char* kClosed = "it was closed";

constexpr rig_services kServices{on_reach, on_lose, on_fail, on_wait, on_done};

}  // namespace

const rig_services* services() { return &kServices; }

Device::Device(std::string name, const rig_driver* table, void* state, Timeline* timeline)
    : name_(std::move(name)), table_(table), state_(state), timeline_(timeline) {
  table_->describe(state_, &info_);
  if (is_host()) timeline_->survives_fork_ = true;
}

Device::~Device() {
  close();
  table_->destroy(state_);
}

bool Device::usable(Error& err) const {
  const bool lost = timeline_->lost();
  if (!lost && !closed_.load(std::memory_order_acquire)) return true;
  err.device = name_;
  return err.set(Code::lost, name_ + ": the device is lost: " + (lost ? timeline_->lost_reason() : kClosed));
}

bool Device::charge(uint64_t nbytes, Error& err) {
  for (int round = 0;; ++round) {
    uint64_t seen = in_use_.load(std::memory_order_acquire);
    const uint64_t limit = budget();
    while (nbytes <= limit && seen <= limit - nbytes) {
      if (in_use_.compare_exchange_weak(seen, seen + nbytes, std::memory_order_acq_rel)) return true;
    }
    if (round == 0) {
      collect_regions();
      continue;
    }
    err.device = name_;
    err.nbytes = nbytes;
    return err.set(Code::out_of_memory, name_ + ": out of memory: " + std::to_string(nbytes) + " bytes asked for, " +
                                            std::to_string(in_use()) + " of " + std::to_string(limit) + " in use");
  }
}

void Device::close() {
  // From here on no work is taken on: the device ends after what it has, whoever would go on submitting.
  if (is_host() || closed_.exchange(true)) return;
  table_->stop(state_);
  timeline_->lose(kClosed);
  set_memory({});
}

Ref<Region> Device::memory() const {
  std::lock_guard lock(memory_lock_);
  return memory_;
}

void Device::set_memory(const Ref<Region>& memory) {
  Ref<Region> before = memory;
  std::lock_guard lock(memory_lock_);
  std::swap(before, memory_);
}

bool Device::report(rig_result result, const char* why, Error& err) const {
  if (result == RIG_OK) return true;
  err.device = name_;
  return err.set(static_cast<Code>(result), name_ + ": " + why);
}

}  // namespace rig
