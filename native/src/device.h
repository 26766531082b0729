// A device: a driver's table, its state, its timeline and its account of memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "error.h"
#include "fork.h"
#include "ref.h"
#include "rig/driver.h"
#include "timeline.h"

namespace rig {

class Region;

class Device : public RefCounted {
 public:
  // `state` is what the table's functions get; the timeline is made by whoever makes the driver's state.
  Device(std::string name, const rig_driver* table, void* state, Timeline* timeline);

  const std::string& name() const { return name_; }
  const rig_device_info& info() const { return info_; }
  const rig_driver* table() const { return table_; }
  void* state() const { return state_; }
  Timeline& timeline() const { return *timeline_; }
  bool can(uint32_t capability) const { return (info_.capabilities & capability) != 0; }
  bool is_host() const { return can(RIG_CAN_INLINE); }

  // Fill err if the device is lost, closed or left behind by a fork.
  bool usable(Error& err) const;

  // Account for nbytes more memory: false and out_of_memory over the budget, after what is free was taken back.
  bool charge(uint64_t nbytes, Error& err);
  void refund(uint64_t nbytes) { in_use_.fetch_sub(nbytes, std::memory_order_acq_rel); }
  uint64_t in_use() const { return in_use_.load(std::memory_order_acquire); }
  uint64_t budget() const { return budget_.load(std::memory_order_acquire); }
  void set_budget(uint64_t nbytes) { budget_.store(nbytes, std::memory_order_release); }

  // End the device after its work; later uses are Lost.
  void close();

  // The memory that the device came with, as a file's bytes; null where it only makes memory, and once it is closed.
  Ref<Region> memory() const;
  void set_memory(const Ref<Region>& memory);

  // Turn a driver's result into an Error whose message starts with the device's name.
  bool report(rig_result result, const char* why, Error& err) const;

 protected:
  ~Device() override;

 private:
  std::string name_;
  const rig_driver* table_;
  void* state_;
  rig_device_info info_{};
  Timeline* timeline_;
  std::atomic<uint64_t> in_use_{0};
  std::atomic<uint64_t> budget_{UINT64_MAX};
  std::atomic<bool> closed_{false};
  mutable ForkLock memory_lock_;
  Ref<Region> memory_;  // which names this device: closing it ends that
};

// What drivers get from the core.
const rig_services* services();

// What a driver hands back when work is over: an object that kept the work's memory and code alive.
class Keep : public RefCounted {};

// This process's host, made at the first call.
Ref<Device> host_device();
// The number of threads that launches on the host are split over; 0 gives the default by mask and quota.
void set_host_threads(uint32_t threads);
uint32_t host_threads();

struct MemoryDeviceOptions {
  std::string name;
  uint64_t nbytes = UINT64_MAX;
  uint64_t alignment = 64;
  bool borrows = true;
  bool copies = true;
  double delay = 0;     // seconds added to each submission
  int64_t fail_at = 0;  // the submission at which the device is lost, 0 for never
};
Ref<Device> make_memory_device(const MemoryDeviceOptions& options);

}  // namespace rig
