#include "region.h"

#include <cstring>
#include <mutex>

#include "order.h"

namespace rig {
namespace {

// Regions that nothing names any more, whose work may still run. Pushed without a lock, from any thread.
std::atomic<Region*> unreachable{nullptr};

// Regions that were freed while buffers over them live on and work or a pin still held the bytes.
struct Freed {
  ForkLock lock;
  std::vector<Ref<Region>> regions;
  std::atomic<bool> any{false};
};
Freed& freed() {
  static Freed* f = new Freed();  // never destroyed: native threads may outlive static destructors
  return *f;
}

}  // namespace

Ref<Region> Region::alloc(const Ref<Device>& device, uint64_t nbytes, uint32_t kind, Error& err) {
  if (!device->usable(err)) return {};
  collect_regions();
  if (!device->charge(nbytes, err)) return {};
  Ref<Region> region(new Region());
  region->device_ = device;
  region->nbytes_ = nbytes;
  char why[RIG_WHY] = "";
  const rig_result result = device->table()->alloc(device->state(), nbytes, kind, &region->memory_, why);
  if (result != RIG_OK) {
    device->refund(nbytes);
    region->returned_ = true;
    device->report(result, why, err);
    err.nbytes = nbytes;
    return {};
  }
  region->charged_ = true;
  return region;
}

Ref<Region> Region::wrap(const Ref<Device>& host, void* address, uint64_t nbytes, bool writable, void* owner,
                         void (*drop)(void*)) {
  Ref<Region> region(new Region());
  region->device_ = host;
  region->nbytes_ = nbytes;
  region->writable_ = writable;
  region->memory_ = {address, reinterpret_cast<uint64_t>(address), static_cast<uint8_t*>(address)};
  region->outside_ = true;
  region->owner_ = owner;
  region->drop_ = drop;
  return region;
}

Ref<Region> Region::given(const Ref<Device>& device, const rig_memory& memory, uint64_t nbytes, bool writable) {
  Ref<Region> region(new Region());
  region->device_ = device;
  region->nbytes_ = nbytes;
  region->writable_ = writable;
  region->outside_ = true;
  region->memory_ = memory;
  return region;
}

Ref<Region> Region::piece(const Ref<Region>& whole, uint64_t offset, uint64_t nbytes) {
  Ref<Region> region(new Region());
  region->device_ = whole->device_;
  region->nbytes_ = nbytes;
  region->writable_ = whole->writable_;
  region->memory_ = whole->memory_;
  region->memory_.object = whole->memory_.host + offset;
  region->memory_.address += offset;
  region->memory_.host += offset;
  region->whole_ = whole;
  return region;
}

bool Region::map(const Ref<Device>& device, rig_memory& out, Error& err) {
  if (device == device_) {
    out = memory_;
    return true;
  }
  std::lock_guard lock(lock_);
  for (const Mapping& m : mappings_) {
    if (m.device == device) {
      out = m.memory;
      return true;
    }
  }
  if (!device->usable(err)) return false;
  // Devices of one driver may share what the host does not address; that driver knows.
  const bool related = device->table() == device_->table() && device->can(RIG_CAN_SHARE);
  if (!related && (!device->can(RIG_CAN_BORROW) || device->table()->borrow == nullptr)) {
    return err.set(Code::refused, device->name() + ": it borrows no memory of other devices, here of " + device_->name());
  }
  if (!related && memory_.host == nullptr) {
    return err.set(Code::refused, device->name() + ": it cannot borrow memory of " + device_->name() +
                                      ", which the host does not address");
  }
  char why[RIG_WHY] = "";
  rig_memory mapped{};
  const rig_result result = device->table()->borrow(device->state(), &memory_, nbytes_, &mapped, why);
  if (!device->report(result, why, err)) return false;
  mappings_.push_back({device, mapped});
  out = mapped;
  return true;
}

bool Region::idle() const {
  const auto over = [](const Stamp& s) { return !s.timeline || s.timeline->over(s.value); };
  if (!over(last_write_)) return false;
  for (const Stamp& s : uses_) {
    if (!over(s)) return false;
  }
  for (const Stamp& s : keeps_) {
    if (!over(s)) return false;
  }
  return true;
}

bool Region::pinned() const { return pins_.load(std::memory_order_seq_cst) != 0 || (before_ && before_->pinned()); }

void Region::give_back() {
  if (returned_) return;
  returned_ = true;
  for (Mapping& m : mappings_) {
    if (m.device->table()->unborrow) m.device->table()->unborrow(m.device->state(), &m.memory);
  }
  mappings_.clear();
  if (drop_) {
    drop_(owner_);
  } else if (charged_) {
    device_->table()->free(device_->state(), &memory_, nbytes_);
    device_->refund(nbytes_);
  }
  whole_ = {};
}

Region::~Region() { give_back(); }

void Region::dispose() {
  if (idle() && !pinned()) {
    delete this;
    return;
  }
  next_ = unreachable.load(std::memory_order_relaxed);
  while (!unreachable.compare_exchange_weak(next_, this, std::memory_order_acq_rel)) {
  }
}

bool Region::free_if_unused() {
  Order::lock().lock();
  const bool unused = !pinned() && idle();
  Order::lock().unlock();
  if (unused) give_back();
  return unused;
}

void collect_regions() {
  if (freed().any.load(std::memory_order_acquire)) {
    std::vector<Ref<Region>> waiting;
    freed().lock.lock();
    waiting.swap(freed().regions);
    freed().any.store(false, std::memory_order_release);
    freed().lock.unlock();
    for (Ref<Region>& region : waiting) {
      if (!region->free_if_unused()) region->free_later();
    }
  }
  if (unreachable.load(std::memory_order_relaxed) == nullptr) return;
  Region* list = unreachable.exchange(nullptr, std::memory_order_acq_rel);
  while (list != nullptr) {
    Region* region = list;
    list = region->next_;
    region->dispose();  // deletes it, or lists it again
  }
}

void Region::free_now(const std::string& why) {
  {
    std::lock_guard lock(lock_);
    if (dead_.load(std::memory_order_relaxed)) return;
    dead_reason_ = why;
    dead_.store(true, std::memory_order_seq_cst);
  }
  if (!free_if_unused()) free_later();
}

void Region::free_later() {
  freed().lock.lock();
  freed().regions.push_back(Ref<Region>(this));
  freed().any.store(true, std::memory_order_release);
  freed().lock.unlock();
}

std::string Region::dead_reason() const {
  std::lock_guard lock(lock_);
  return dead_reason_;
}

bool Region::wait_idle(bool for_write, Gate* gate, Error& err) {
  if (!stamped_.load(std::memory_order_acquire)) return true;
  WaitList waits;
  ForkLock& order = Order::lock();
  order.lock();
  const Named named{this, for_write ? Use::write : Use::read};
  Order::gather(&named, 1, nullptr, waits);
  order.unlock();
  return Order::wait_all(waits, gate, err);
}

bool Region::hold(Error& err) {
  std::lock_guard lock(lock_);
  if (dead_) return err.set(Code::invalid, "the buffer is dead: " + dead_reason_);
  if (exclusive_) return err.set(Code::invalid, "the buffer's memory is held exclusive");
  ++holds_;
  return true;
}

void Region::unhold() {
  std::lock_guard lock(lock_);
  --holds_;
}

bool Region::exclude(Error& err) {
  std::lock_guard lock(lock_);
  if (dead_) return err.set(Code::invalid, "the buffer is dead: " + dead_reason_);
  if (outside_) return err.set(Code::invalid, "memory that something outside rig reaches is never exclusive");
  if (lent_.load(std::memory_order_seq_cst) != 0) {
    return err.set(Code::invalid, "the buffer's memory is exported as an array or a memoryview, it is not exclusive meanwhile");
  }
  if (exclusive_) return err.set(Code::invalid, "the buffer's memory is held exclusive already");
  if (holds_ != 0) {
    return err.set(Code::invalid, "the buffer's memory has " + std::to_string(holds_) + " shared holds");
  }
  exclusive_ = true;
  return true;
}

void Region::unexclude() {
  std::lock_guard lock(lock_);
  exclusive_ = false;
}

Ref<Region> Region::consume(const std::string& why, Error& err) {
  ForkLock& order = Order::lock();
  order.lock();
  lock_.lock();
  Ref<Region> heir;
  if (dead_) {
    err.set(Code::invalid, "the buffer is dead: " + dead_reason_);
  } else if (!exclusive_) {
    err.set(Code::invalid, "consuming a buffer needs an exclusive claim on its memory");
  } else if (lent_.load(std::memory_order_seq_cst) != 0) {
    err.set(Code::invalid, "the buffer's memory is exported as an array or a memoryview, it is not consumed meanwhile");
  } else {
    heir = Ref<Region>(new Region());
    heir->device_ = device_;
    heir->nbytes_ = nbytes_;
    heir->writable_ = writable_;
    heir->memory_ = memory_;
    heir->charged_ = std::exchange(charged_, false);
    heir->whole_ = whole_;
    heir->last_write_ = last_write_;
    heir->uses_ = uses_;
    heir->keeps_ = keeps_;
    heir->stamped_.store(stamped_.load());
    heir->mappings_ = std::move(mappings_);
    mappings_.clear();
    returned_ = true;
    exclusive_ = false;
    dead_reason_ = why;
    dead_.store(true, std::memory_order_seq_cst);
    // A call that pinned these bytes before may be at work on them: they return after it, whoever frees them then.
    if (pinned()) heir->before_ = Ref<Region>(this);
  }
  lock_.unlock();
  order.unlock();
  return heir;
}

}  // namespace rig
