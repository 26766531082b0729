// A region: one piece of memory of a device, with its stamps, its claims and its life.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "device.h"
#include "error.h"
#include "fork.h"
#include "ref.h"
#include "timeline.h"

namespace rig {

enum class Use : uint8_t { read = 0, write = 1, unordered = 2 };

class Region : public RefCounted {
 public:
  // Make memory of a device; null and err if it cannot be made.
  static Ref<Region> alloc(const Ref<Device>& device, uint64_t nbytes, uint32_t kind, Error& err);
  // Name host memory that something else owns; `drop(owner)` is called once when no work uses it any more.
  static Ref<Region> wrap(const Ref<Device>& host, void* address, uint64_t nbytes, bool writable, void* owner,
                          void (*drop)(void*));

  // Name memory that `device` came with, and that other processes may reach.
  static Ref<Region> given(const Ref<Device>& device, const rig_memory& memory, uint64_t nbytes, bool writable);

  // A piece of a region as a region of its own, with its own stamps, claims and life; it keeps the whole. Only of memory
  // that no mapping or claim is on yet, so that nothing else orders by the whole.
  static Ref<Region> piece(const Ref<Region>& whole, uint64_t offset, uint64_t nbytes);

  Device& device() const { return *device_; }
  const Ref<Device>& device_ref() const { return device_; }
  uint64_t nbytes() const { return nbytes_; }
  bool writable() const { return writable_; }
  const rig_memory& memory() const { return memory_; }
  uint8_t* host() const { return memory_.host; }
  bool borrowed_from_outside() const { return drop_ != nullptr; }

  // This memory as `device` sees it: its own, or a mapping made at the first call and kept with the region.
  // False and refused if the device does not map it.
  bool map(const Ref<Device>& device, rig_memory& out, Error& err);

  // Free the memory now for every buffer over it: the bytes return after the work on them.
  void free_now(const std::string& why);
  bool live() const { return !dead_.load(std::memory_order_acquire); }
  std::string dead_reason() const;

  // Held by whoever may touch the bytes: freed memory returns only once nothing pins it. A user pins, then asks live().
  void pin() { pins_.fetch_add(1, std::memory_order_seq_cst); }
  void unpin() { pins_.fetch_sub(1, std::memory_order_seq_cst); }

  // The same for bytes that something outside rig reaches meanwhile, so that no claim is exclusive.
  void lend() {
    pin();
    lent_.fetch_add(1, std::memory_order_seq_cst);
  }
  void unlend() {
    lent_.fetch_sub(1, std::memory_order_seq_cst);
    unpin();
  }

  // Wait for the last write (to read), or for every use (to write), from the calling thread.
  bool wait_idle(bool for_write, Gate* gate, Error& err);

  // Claims: shared holds counted, or one exclusive. False and invalid if they are at odds.
  bool hold(Error& err);
  void unhold();
  bool exclude(Error& err);
  void unexclude();
  // End every buffer over this region made so far and give the memory to a new region. Needs an exclusive claim.
  Ref<Region> consume(const std::string& why, Error& err);
  bool exclusive() const { return exclusive_; }

 protected:
  ~Region() override;
  void dispose() override;

 private:
  Region() = default;
  bool idle() const;    // no work uses the memory
  bool pinned() const;  // nor a caller, of a region whose memory this one took over
  bool free_if_unused();
  void free_later();
  void give_back();  // return the bytes to the driver or the owner

  Ref<Device> device_;
  rig_memory memory_{};
  uint64_t nbytes_ = 0;
  bool writable_ = true;
  bool outside_ = false;  // something outside rig reaches the bytes
  bool charged_ = false;
  bool returned_ = false;
  Ref<Region> whole_;  // of a piece
  void* owner_ = nullptr;
  void (*drop_)(void*) = nullptr;

  // Under the order lock (order.cc).
  Stamp last_write_;
  std::vector<Stamp> uses_;   // the last use of each timeline since the last write
  std::vector<Stamp> keeps_;  // uses that order nothing, and only keep the memory
  std::atomic<bool> stamped_{false};
  friend class Order;
  friend void collect_regions();

  struct Mapping {
    Ref<Device> device;
    rig_memory memory;
  };
  mutable ForkLock lock_;  // mappings, claims, death
  std::vector<Mapping> mappings_;
  std::atomic<bool> dead_{false};
  std::atomic<uint32_t> pins_{0};
  std::atomic<uint32_t> lent_{0};
  Ref<Region> before_;  // the consumed region whose pins hold this memory too, if there were any
  std::string dead_reason_;
  uint32_t holds_ = 0;
  bool exclusive_ = false;
  Region* next_ = nullptr;  // on the reaper's list
};

// Give back the memory of regions that nothing names and whose work is over.
void collect_regions();

}  // namespace rig
