// A memory device: memory and an in-order queue of its own, worked off by one native thread that runs host code. It is
// asynchronous to its caller like an accelerator, so that ordering can be shown and tested without one.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

#include "device.h"
#include "fork.h"
#include "futex.h"
#include "host_call.h"
#include "host_info.h"
#include "host_memory.h"
#include "pool.h"
#include "ref.h"

namespace rig {
namespace {

// One submission in the queue. Its vectors keep their room when the slot is used again.
struct Entry {
  const rig_part* parts = nullptr;
  const uint8_t* params = nullptr;
  uint32_t part_count = 0;
  uint64_t value = 0;
  void* keep = nullptr;
  std::vector<rig_part> own_parts;
  std::vector<uint64_t> own_params;
  std::vector<rig_point> waits;
};

class MemoryQueue : public RefCounted {
 public:
  MemoryQueue(const MemoryDeviceOptions& options, Timeline* timeline)
      : options_(options), timeline_(timeline), ring_(16) {}

  const MemoryDeviceOptions& options() const { return options_; }

  bool start();
  bool push(const rig_work& work);  // false if the thread has ended
  void stop();

  bool take(uint64_t nbytes);
  void give(uint64_t nbytes) { in_use_.fetch_sub(nbytes, std::memory_order_acq_rel); }

 private:
  static void* enter(void* self);
  void work();
  void execute(const Entry& entry);
  void finish(Entry& entry);
  void abandon();  // after a loss: nothing queued will be done

  MemoryDeviceOptions options_;
  Timeline* timeline_;
  std::atomic<uint64_t> in_use_{0};
  std::mutex lock_;  // the ring
  bool over_ = false;  // the thread takes no more from the ring
  std::vector<Entry> ring_;
  uint64_t head_ = 0, tail_ = 0;
  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  pthread_t thread_{};
};

bool MemoryQueue::start() {
  watch_forks();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  retain();  // the thread's
  const bool ok = pthread_create(&thread_, nullptr, enter, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ok) {
    pthread_setname_np(thread_, "rig-memory");
  } else {
    release();
  }
  return ok;
}

void* MemoryQueue::enter(void* self) {
  auto* queue = static_cast<MemoryQueue*>(self);
  queue->work();
  queue->release();
  return nullptr;
}

bool MemoryQueue::take(uint64_t nbytes) {
  uint64_t seen = in_use_.load(std::memory_order_relaxed);
  do {
    if (nbytes > options_.nbytes || seen > options_.nbytes - nbytes) return false;
  } while (!in_use_.compare_exchange_weak(seen, seen + nbytes, std::memory_order_acq_rel));
  return true;
}

bool MemoryQueue::push(const rig_work& work) {
  {
    std::lock_guard lock(lock_);
    if (over_) return false;
    if (tail_ - head_ == ring_.size()) {
      std::vector<Entry> more(ring_.size() * 2);
      for (uint64_t i = head_; i != tail_; ++i) more[i % more.size()] = std::move(ring_[i % ring_.size()]);
      ring_ = std::move(more);
    }
    Entry& e = ring_[tail_ % ring_.size()];
    e.part_count = work.part_count;
    e.value = work.value;
    e.keep = work.keep;
    e.waits.assign(work.waits, work.waits + work.wait_count);
    if (work.constant) {
      e.parts = work.parts;
      e.params = work.params;
    } else {
      e.own_parts.assign(work.parts, work.parts + work.part_count);
      e.own_params.resize((work.params_size + 7) / 8);
      if (work.params_size != 0) memcpy(e.own_params.data(), work.params, work.params_size);
      e.parts = nullptr;
    }
    ++tail_;
  }
  // The thread sets sleeping_ and then looks at the ring under the lock: it sees the entry, or this sees sleeping_.
  if (sleeping_.load(std::memory_order_seq_cst)) {
    bell_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(bell_, 1);
  }
  return true;
}

void MemoryQueue::execute(const Entry& e) {
  const rig_part* parts = e.parts ? e.parts : e.own_parts.data();
  const auto* params = e.parts ? e.params : reinterpret_cast<const uint8_t*>(e.own_params.data());
  for (uint32_t i = 0; i < e.part_count; ++i) {
    const rig_part& p = parts[i];
    const auto* words = reinterpret_cast<const uint64_t*>(params + p.params_offset);
    const auto function = reinterpret_cast<HostFunction>(p.function);
    switch (p.kind) {
      case RIG_LAUNCH: {
        uint64_t blocks = p.groups[0];
        for (int k = 1; k < 3; ++k) blocks = p.groups[k] == 0 || p.threads[k] == 0 ? 0 : blocks;
        if (blocks != 0 && p.threads[0] != 0) run_blocks(function, words, p.threads[0], blocks);
        break;
      }
      case RIG_FILL: function(words, 0, 1); break;
      default:
        memmove(reinterpret_cast<void*>(p.dst.address), reinterpret_cast<const void*>(p.src.address), p.length);
    }
  }
}

void MemoryQueue::finish(Entry& e) {
  void* keep = std::exchange(e.keep, nullptr);
  services()->reach(timeline_, e.value);
  if (keep) services()->done(keep);
}

void MemoryQueue::work() {
  for (;;) {
    Entry entry;
    {
      std::unique_lock lock(lock_);
      while (head_ == tail_) {
        if (stopping_.load(std::memory_order_acquire)) {
          over_ = true;
          return;
        }
        const uint32_t bell = bell_.load(std::memory_order_acquire);
        sleeping_.store(true, std::memory_order_seq_cst);
        lock.unlock();
        bool still;
        {
          std::lock_guard again(lock_);
          still = head_ == tail_ && !stopping_.load(std::memory_order_acquire);
        }
        if (still) futex_wait(bell_, bell, -1);
        sleeping_.store(false, std::memory_order_seq_cst);
        lock.lock();
      }
      std::swap(entry, ring_[head_ % ring_.size()]);
    }
    std::string failed;
    for (const rig_point& p : entry.waits) {
      const auto& timeline = *static_cast<const Timeline*>(p.timeline);
      if (&timeline == timeline_) {
        failed = timeline.failure(p.value);
      } else if (services()->wait(p) != 0) {
        Error err;
        lost_error(timeline, p.value, err);
        failed = err.message;
      }
      if (!failed.empty()) break;
    }
    if (options_.delay > 0) {
      const auto ns = static_cast<int64_t>(options_.delay * 1e9);
      timespec t{ns / 1000000000, ns % 1000000000};
      while (nanosleep(&t, &t) != 0 && errno == EINTR) {
      }
    }
    if (options_.fail_at > 0 && entry.value == static_cast<uint64_t>(options_.fail_at)) {
      const std::string reason = "it failed at submission " + std::to_string(entry.value) + ", as it was made to";
      services()->lose(timeline_, reason.c_str());
      if (entry.keep) services()->done(entry.keep);
      abandon();
      return;
    }
    timeline_->work_on(sched_getcpu());
    if (failed.empty()) {
      execute(entry);
    } else {
      services()->fail(timeline_, entry.value, failed.c_str());
    }
    finish(entry);
    // Give the vectors' room back to the slot, then the slot to the queue.
    std::lock_guard lock(lock_);
    std::swap(entry, ring_[head_ % ring_.size()]);
    ++head_;
  }
}

void MemoryQueue::abandon() {
  std::lock_guard lock(lock_);
  over_ = true;
  ++head_;  // the entry that failed
  for (; head_ != tail_; ++head_) {
    if (void* keep = std::exchange(ring_[head_ % ring_.size()].keep, nullptr)) services()->done(keep);
  }
}

void MemoryQueue::stop() {
  stopping_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(bell_, 1);
  // The last name of a device may be dropped by its own thread, as it lets go of finished work.
  if (pthread_equal(pthread_self(), thread_)) {
    pthread_detach(thread_);
  } else {
    pthread_join(thread_, nullptr);
  }
}

MemoryQueue& queue(void* state) { return *static_cast<MemoryQueue*>(state); }

void describe(void* state, rig_device_info* info) {
  const MemoryDeviceOptions& o = queue(state).options();
  const HostInfo& host = host_info();
  snprintf(info->kind, sizeof info->kind, "memory");
  snprintf(info->arch, sizeof info->arch, "%s", host.arch.c_str());
  snprintf(info->instruction_set, sizeof info->instruction_set, "%s", host.instruction_set.c_str());
  info->capabilities = RIG_CAN_HOST_CODE | RIG_CAN_ADDRESS | RIG_CAN_FILL;
  if (o.borrows) info->capabilities |= RIG_CAN_BORROW | RIG_CAN_HOST_WINDOW;
  if (o.copies) info->capabilities |= RIG_CAN_COPY;
  info->cores = usable_cores();
  info->alignment = o.alignment;
  info->cache_bytes = host.cache_bytes;
}

rig_result alloc(void* state, uint64_t nbytes, uint32_t, rig_memory* memory, char* why) {
  MemoryQueue& q = queue(state);
  if (!q.take(nbytes)) {
    snprintf(why, RIG_WHY, "out of memory: %llu bytes asked for, the device has %llu",
             static_cast<unsigned long long>(nbytes), static_cast<unsigned long long>(q.options().nbytes));
    return RIG_OUT_OF_MEMORY;
  }
  // Start on the stated alignment and on no greater one, so that nothing comes to rely on more.
  const uint64_t lead = q.options().alignment;
  uint8_t* at = host_alloc(nbytes + 2 * lead);
  if (at == nullptr) {
    q.give(nbytes);
    snprintf(why, RIG_WHY, "out of memory: the system gives no %llu bytes", static_cast<unsigned long long>(nbytes));
    return RIG_OUT_OF_MEMORY;
  }
  const uint64_t start = reinterpret_cast<uint64_t>(at);
  uint64_t address = (start + lead - 1) / lead * lead;
  if (address % (2 * lead) == 0) address += lead;
  auto* first = reinterpret_cast<uint8_t*>(address);
  *memory = {at, reinterpret_cast<uint64_t>(first), q.options().borrows ? first : nullptr};
  return RIG_OK;
}

void free_memory(void* state, rig_memory* memory, uint64_t nbytes) {
  host_free(static_cast<uint8_t*>(memory->object), nbytes + 2 * queue(state).options().alignment);
  queue(state).give(nbytes);
}

rig_result read(void*, const rig_memory* memory, uint64_t offset, void* into, uint64_t nbytes, char*) {
  memcpy(into, reinterpret_cast<const uint8_t*>(memory->address) + offset, nbytes);
  return RIG_OK;
}

rig_result write(void*, const rig_memory* memory, uint64_t offset, const void* from, uint64_t nbytes, char*) {
  memcpy(reinterpret_cast<uint8_t*>(memory->address) + offset, from, nbytes);
  return RIG_OK;
}

rig_result prepare(void*, const rig_work*, void** prepared, char*) {
  *prepared = nullptr;  // the queue takes parts as they are
  return RIG_OK;
}
void release(void*, void*) {}

rig_result submit(void* state, const rig_work* work, char* why) {
  if (queue(state).push(*work)) return RIG_OK;
  snprintf(why, RIG_WHY, "it was closed");
  return RIG_LOST;
}

void stop(void* state) { queue(state).stop(); }
void destroy(void* state) { queue(state).release(); }

rig_result borrow(void* state, const rig_memory* memory, uint64_t, rig_memory* mapped, char* why) {
  if (!queue(state).options().borrows) {
    snprintf(why, RIG_WHY, "it borrows no memory of other devices");
    return RIG_REFUSED;
  }
  *mapped = {memory->host, reinterpret_cast<uint64_t>(memory->host), memory->host};
  return RIG_OK;
}

const rig_driver kDriver{RIG_DRIVER_VERSION, sizeof(rig_driver), describe,        alloc,   free_memory,
                         read,               write,              host_load_image, host_unload_image, host_resolve,
                         host_check_part,    prepare,            release,         submit,  stop,
                         destroy,            borrow,             nullptr};

}  // namespace

Ref<Device> make_memory_device(const MemoryDeviceOptions& options) {
  auto* timeline = new Timeline(options.name);
  auto* q = new MemoryQueue(options, timeline);
  q->retain();  // the device's, for as long as its memory may be given back
  if (!q->start()) {
    q->release();
    return {};
  }
  return Ref<Device>(new Device(options.name, &kDriver, q, timeline));
}

}  // namespace rig
