// A memory device: memory and an in-order queue of its own, worked off by one native thread that runs host code. It is
// asynchronous to its caller like an accelerator, so that ordering can be shown and tested without one.
#include <errno.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "device.h"
#include "host_call.h"
#include "host_info.h"
#include "host_memory.h"
#include "pool.h"
#include "ref.h"
#include "work_queue.h"

namespace rig {
namespace {

class MemoryQueue : public WorkQueue {
 public:
  MemoryQueue(const MemoryDeviceOptions& options, Timeline* timeline) : WorkQueue(timeline, "rig-memory"), options_(options) {}

  const MemoryDeviceOptions& options() const { return options_; }

  bool take(uint64_t nbytes);
  void give(uint64_t nbytes) { in_use_.fetch_sub(nbytes, std::memory_order_acq_rel); }

 protected:
  bool execute(const Entry& entry, std::string& failed) override;

 private:
  MemoryDeviceOptions options_;
  std::atomic<uint64_t> in_use_{0};
};

bool MemoryQueue::take(uint64_t nbytes) {
  uint64_t seen = in_use_.load(std::memory_order_relaxed);
  do {
    if (nbytes > options_.nbytes || seen > options_.nbytes - nbytes) return false;
  } while (!in_use_.compare_exchange_weak(seen, seen + nbytes, std::memory_order_acq_rel));
  return true;
}

void do_part(const rig_part& p, const uint8_t* params) {
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
    default: memmove(reinterpret_cast<void*>(p.dst.address), reinterpret_cast<const void*>(p.src.address), p.length);
  }
}

bool MemoryQueue::execute(const Entry& entry, std::string& failed) {
  if (options_.delay > 0) {
    const auto ns = static_cast<int64_t>(options_.delay * 1e9);
    timespec t{ns / 1000000000, ns % 1000000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
  }
  if (options_.fail_at > 0 && entry.value == static_cast<uint64_t>(options_.fail_at)) {
    failed = "it failed at submission " + std::to_string(entry.value) + ", as it was made to";
    return false;
  }
  timeline().work_on(sched_getcpu());
  for (uint32_t i = 0; failed.empty() && i < entry.part_count; ++i) do_part(entry.parts()[i], entry.params());
  return true;
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
