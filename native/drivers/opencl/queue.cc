#include "queue.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "futex.h"
#include "host_call.h"

namespace rig::opencl {
namespace {

constexpr int64_t kLastLanding = 2'000'000'000;  // ns that a lost device's work has to end, before its memory may go

bool runs_nothing(const rig_part& part) {
  if (part.kind == RIG_COPY) return part.length == 0;
  if (part.kind != RIG_LAUNCH) return false;
  for (int k = 0; k < 3; ++k) {
    if (part.groups[k] == 0 || part.threads[k] == 0) return true;
  }
  return false;
}

OpenClMemory best_memory(DeviceId* device, OpenClMemory asked) {
  const Cl& c = cl();
  Bits shared = device_value<Bits>(device, kSharedMemory);
  if (!c.SVMAlloc || !c.SVMFree || !c.SetKernelArgSVMPointer || !c.EnqueueSVMMemcpy || !c.EnqueueSVMMemFill) shared = 0;
  if (device_value<uint32_t>(device, kAddressBits) != 64) shared = 0;
  if (asked <= OpenClMemory::fine && (shared & kSharedFine)) return OpenClMemory::fine;
  if (asked <= OpenClMemory::coarse && (shared & kSharedCoarse)) return OpenClMemory::coarse;
  return OpenClMemory::handles;
}

void call_fill(void* blob) {
  const auto* words = static_cast<const uint64_t*>(blob);
  reinterpret_cast<HostFunction>(words[0])(words + 1, 0, 1);
}

}  // namespace

Queue::Queue(const OpenClOptions& options, const Found& found, Context* context, Timeline* timeline)
    : WorkQueue(timeline, "rig-opencl"), context_(context), device_(found.device),
      memory_(best_memory(found.device, options.memory)), fail_at_(options.fail_at) {
  alignment_ = std::max<uint64_t>(device_value<uint32_t>(device_, kBaseAlignBits) / 8, 1);
  size_t limits[16] = {1, 1, 1};
  cl().GetDeviceInfo(device_, kMaxItemSizes, sizeof limits, limits, nullptr);
  std::copy(limits, limits + 3, item_limits_);
  // A processor's device works in this process: what it is told to reach, it reaches as the process does.
  const bool system = (device_value<Bits>(device_, kSharedMemory) & kSharedSystem) != 0;
  reaches_host_ = memory_ == OpenClMemory::fine && (system || (device_value<Bits>(device_, kDeviceType) & kTypeCpu) != 0);
  native_kernels_ = reaches_host_ && (device_value<Bits>(device_, kExecution) & kNativeKernels) != 0;
}

bool Queue::open(std::string& why) {
  for (QueueId** queue : {&queue_, &transfers_}) {
    Status status = kSuccess;
    if (cl().CreateCommandQueueWithProperties) {
      const Bits properties[] = {kQueueProperties, kProfiling, 0};
      *queue = cl().CreateCommandQueueWithProperties(context_->id, device_, properties, &status);
    } else {
      *queue = cl().CreateCommandQueue(context_->id, device_, kProfiling, &status);
    }
    if (*queue == nullptr || status != kSuccess) {
      why = "its platform makes no queue: " + status_name(status);
      return false;
    }
  }
  if (start()) return true;
  why = "the system gives no thread for its queue";
  return false;
}

void Queue::leave() {
  for (QueueId** queue : {&queue_, &transfers_}) {
    if (*queue != nullptr && here()) cl().ReleaseCommandQueue(*queue);
    *queue = nullptr;
  }
}

Queue::~Queue() {
  leave();
  while (Flight* f = spare_) {
    spare_ = f->next;
    delete f;
  }
}

bool Queue::done(Status status, const char* what, std::string& failed) const {
  if (status == kSuccess) return true;
  failed = std::string(what) + " was refused, " + status_name(status);
  return false;
}

bool Queue::set_pointer(const Kernel& kernel, uint32_t index, uint64_t word, std::vector<MemId*>& parts, std::string& failed) const {
  const auto refuse = [&](const std::string& text) {
    failed = "argument " + std::to_string(index) + " of '" + kernel.name + "' " + text;
    return false;
  };
  MemId* object = nullptr;
  if (word != 0) {
    Memory::Piece piece;
    uint64_t offset = 0;
    if (!context_->memory.find(word, piece, offset) || piece.object == nullptr) return refuse("is no memory of the device");
    object = piece.object;
    if (offset != 0 && offset % alignment_ != 0) {
      return refuse("is byte " + std::to_string(offset) + " of memory that is known by its handle: work names it from its first byte or from a multiple of " +
                    std::to_string(alignment_));
    }
    if (offset != 0) {
      if (offset == piece.nbytes) return refuse("is the end of memory that is known by its handle");
      const BufferRegion region{offset, piece.nbytes - offset};
      Status status = kSuccess;
      object = cl().CreateSubBuffer(piece.object, kReadWrite, kBufferRegion, &region, &status);
      if (object == nullptr || status != kSuccess) return refuse("is a part of memory that was refused, " + status_name(status));
      parts.push_back(object);
    }
  }
  return done(cl().SetKernelArg(kernel.id, index, sizeof object, &object), "an argument", failed);
}

bool Queue::launch(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed) {
  Kernel& kernel = *reinterpret_cast<Kernel*>(part.function);
  const bool objects = memory_ == OpenClMemory::handles;
  std::vector<MemId*> pieces;
  bool good = true;
  for (uint32_t i = 0; good && i < kernel.arguments.size(); ++i) {
    uint64_t word = 0;
    memcpy(&word, params + part.params_offset + 8 * i, 8);
    const Argument& argument = kernel.arguments[i];
    // An object may be gone and another have its handle: such arguments are always set.
    if (kernel.set && word == kernel.words[i] && !(objects && argument.kind == Argument::pointer)) continue;
    kernel.words[i] = word;
    switch (argument.kind) {
      case Argument::pointer:
        good = objects ? set_pointer(kernel, i, word, pieces, failed)
                       : done(cl().SetKernelArgSVMPointer(kernel.id, i, reinterpret_cast<const void*>(word)), "an argument", failed);
        break;
      case Argument::local: good = done(cl().SetKernelArg(kernel.id, i, word, nullptr), "the size of a local argument", failed); break;
      case Argument::value: good = done(cl().SetKernelArg(kernel.id, i, argument.size, &word), "an argument", failed); break;
    }
  }
  kernel.set = good;
  if (good) {
    size_t global[3], local[3];
    for (int k = 0; k < 3; ++k) {
      global[k] = part.groups[k] * part.threads[k];
      local[k] = part.threads[k];
    }
    const uint32_t dimensions = global[2] != 1 ? 3 : global[1] != 1 ? 2 : 1;
    const Status status = cl().EnqueueNDRangeKernel(queue_, kernel.id, dimensions, nullptr, global, local, 0, nullptr, event);
    good = done(status, ("the launch of '" + kernel.name + "'").c_str(), failed);
  }
  for (MemId* piece : pieces) cl().ReleaseMemObject(piece);
  return good;
}

bool Queue::copy(const rig_part& part, EventId** event, std::string& failed) {
  if (memory_ == OpenClMemory::handles) {
    return done(cl().EnqueueCopyBuffer(queue_, static_cast<MemId*>(part.src.object), static_cast<MemId*>(part.dst.object), part.src.offset,
                                       part.dst.offset, part.length, 0, nullptr, event),
                "a copy", failed);
  }
  return done(cl().EnqueueSVMMemcpy(queue_, 0, reinterpret_cast<void*>(part.dst.address), reinterpret_cast<const void*>(part.src.address),
                                    part.length, 0, nullptr, event),
              "a copy", failed);
}

bool Queue::fill(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed) {
  blob_.resize(1 + (part.params_size + 7) / 8);
  blob_[0] = part.function;
  if (part.params_size != 0) memcpy(blob_.data() + 1, params + part.params_offset, part.params_size);
  return done(cl().EnqueueNativeKernel(queue_, call_fill, blob_.data(), 8 * blob_.size(), 0, nullptr, nullptr, 0, nullptr, event), "a fill",
              failed);
}

bool Queue::enqueue(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed) {
  switch (part.kind) {
    case RIG_LAUNCH: return launch(part, params, event, failed);
    case RIG_FILL: return fill(part, params, event, failed);
    default: return copy(part, event, failed);
  }
}

bool Queue::execute(const Entry& entry, std::string& failed) {
  event_ = nullptr;
  if (fail_at_ > 0 && entry.value == static_cast<uint64_t>(fail_at_)) {
    std::lock_guard guard(flights_lock_);
    broken_ = "it failed at submission " + std::to_string(entry.value) + ", as it was made to";
  }
  if (!tend(failed)) return false;
  if (!failed.empty()) return true;
  uint32_t count = entry.part_count;
  while (count != 0 && runs_nothing(entry.parts()[count - 1])) --count;
  for (uint32_t i = 0; failed.empty() && i < count; ++i) {
    const rig_part& part = entry.parts()[i];
    if (!runs_nothing(part)) enqueue(part, entry.params(), i + 1 == count ? &event_ : nullptr, failed);
  }
  // Parts before one that was refused are on their way, and so may be the submissions before one without parts.
  Status status = kSuccess;
  if (event_ == nullptr) status = cl().EnqueueMarkerWithWaitList(queue_, 0, nullptr, &event_);
  if (status == kSuccess) return true;
  failed = "its queue takes no more work: " + status_name(status);
  return false;
}

void Queue::finish(Entry& entry, const std::string& failed) {
  if (!failed.empty()) services()->fail(&timeline(), entry.value, failed.c_str());
  Flight* f = nullptr;
  {
    std::lock_guard guard(flights_lock_);
    f = spare_;
    if (f != nullptr) spare_ = f->next;
  }
  if (f == nullptr) f = new Flight();
  *f = {this, entry.value, std::exchange(entry.keep, nullptr), std::exchange(event_, nullptr), nullptr, 0, false};
  {
    std::lock_guard guard(flights_lock_);
    (last_ ? last_->next : first_) = f;
    last_ = f;
    flying_.fetch_add(1, std::memory_order_acq_rel);
  }
  retain();  // the flight's: its end may be told while the thread that saw it ends
  EventId* event = f->event;
  if (event == nullptr) {
    land(f, kComplete);
    release();
    return;
  }
  const Status status = cl().SetEventCallback(event, kComplete, on_event, f);
  if (status != kSuccess) {
    land(f, status);
    release();
  }
  cl().Flush(queue_);
}

void Queue::on_event(EventId*, int32_t status, void* flight) {
  auto* f = static_cast<Flight*>(flight);
  Queue* queue = f->queue;
  queue->land(f, status);
  queue->release();
}

// On a thread of the platform: nothing of the platform is called here.
void Queue::land(Flight* flight, int32_t status) {
  {
    std::lock_guard guard(flights_lock_);
    flight->landed = true;
    flight->status = status;
    // Ends may be told out of order, values are reached in order.
    while (first_ != nullptr && first_->landed) {
      Flight* f = first_;
      first_ = f->next;
      if (first_ == nullptr) last_ = nullptr;
      if (f->status < 0 && broken_.empty()) {
        broken_ = "submission " + std::to_string(f->value) + " ended with " + status_name(f->status);
      }
      if (broken_.empty()) services()->reach(&timeline(), f->value);
      f->next = over_;
      over_ = f;
      flying_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
  ring();
}

bool Queue::tend(std::string& reason) {
  const auto let_go = [this] {
    Flight* list = nullptr;
    std::string broken;
    {
      std::lock_guard guard(flights_lock_);
      list = std::exchange(over_, nullptr);
      broken = broken_;
    }
    while (list != nullptr) {
      Flight* f = list;
      list = f->next;
      if (f->event != nullptr) cl().ReleaseEvent(f->event);
      if (f->keep != nullptr) services()->done(f->keep);
      std::lock_guard guard(flights_lock_);
      f->next = spare_;
      spare_ = f;
    }
    return broken;
  };
  std::string broken = let_go();
  if (broken.empty()) return true;
  // What was handed over may run on, over memory that may go once the device is lost.
  const int64_t until = now_ns() + kLastLanding;
  while (running() && now_ns() < until) {
    timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
  }
  let_go();
  reason = broken;
  return false;
}

}  // namespace rig::opencl
