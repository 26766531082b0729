// OpenCL devices behind the driver interface.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "code.h"
#include "queue.h"

namespace rig::opencl {
namespace {

Queue& queue(void* state) { return *static_cast<Queue*>(state); }

rig_result tell(Status status, const char* what, char* why) {
  if (status == kSuccess) return RIG_OK;
  snprintf(why, RIG_WHY, "%s was refused, %s", what, status_name(status).c_str());
  if (status == kDeviceNotAvailable) return RIG_LOST;
  return status == kAllocationFailure || status == kOutOfResources || status == kOutOfHostMemory ? RIG_OUT_OF_MEMORY : RIG_REFUSED;
}

// The version of the language, and what not every device has of it: that is what text is written for.
std::string arch_of(DeviceId* device) {
  const std::string language = device_text(device, kLanguage);  // "OpenCL C 1.2 ..."
  constexpr size_t kPrefix = 9;
  std::string version = language.size() > kPrefix ? language.substr(kPrefix) : "1.0";
  version = version.substr(0, version.find_first_not_of("0123456789."));
  const std::string extensions = device_text(device, kExtensions);  // words, none of which begins with another of these
  std::string arch = "opencl-c-" + version;
  if (extensions.find("cl_khr_fp16") != std::string::npos) arch += "+fp16";
  if (extensions.find("cl_khr_fp64") != std::string::npos) arch += "+fp64";
  return arch;
}

void describe(void* state, rig_device_info* info) {
  const Queue& q = queue(state);
  snprintf(info->kind, sizeof info->kind, "opencl");
  snprintf(info->arch, sizeof info->arch, "%s", arch_of(q.device()).c_str());
  info->capabilities = RIG_CAN_COPY | RIG_CAN_SHARE;
  info->capabilities |= q.memory() == OpenClMemory::handles ? RIG_CAN_HANDLE : RIG_CAN_ADDRESS;
  if (q.memory() == OpenClMemory::fine) info->capabilities |= RIG_CAN_HOST_WINDOW;
  if (q.reaches_host()) info->capabilities |= RIG_CAN_BORROW;
  if (q.native_kernels()) info->capabilities |= RIG_CAN_FILL;
  info->cores = device_value<uint32_t>(q.device(), kMaxComputeUnits);
  info->alignment = q.alignment();
  info->cache_bytes = device_value<uint64_t>(q.device(), kCacheBytes);
}

rig_result no_memory(uint64_t nbytes, uint64_t most, char* why) {
  snprintf(why, RIG_WHY, "out of memory: %llu bytes asked for, the device gives at most %llu at once",
           static_cast<unsigned long long>(nbytes), static_cast<unsigned long long>(most));
  return RIG_OUT_OF_MEMORY;
}

rig_result alloc(void* state, uint64_t nbytes, uint32_t kind, rig_memory* memory, char* why) {
  const Queue& q = queue(state);
  Context& c = q.context();
  const uint64_t most = device_value<uint64_t>(q.device(), kMaxAllocation);
  const uint64_t align = q.alignment(), size = std::max<uint64_t>(nbytes, 1);
  if (most < align || size > most - align) return no_memory(nbytes, most, why);
  const uint8_t zero = 0;
  if (q.memory() == OpenClMemory::handles) {
    if (kind != 0) {
      snprintf(why, RIG_WHY, "it has no memory that the host and the device both address");
      return RIG_REFUSED;
    }
    Status status = kSuccess;
    MemId* object = cl().CreateBuffer(c.id, kReadWrite, size, nullptr, &status);
    if (object == nullptr || status != kSuccess) return no_memory(nbytes, most, why);
    status = cl().EnqueueFillBuffer(q.transfers(), object, &zero, 1, 0, size, 0, nullptr, nullptr);
    if (status == kSuccess) status = cl().Finish(q.transfers());
    if (status != kSuccess) {
      cl().ReleaseMemObject(object);
      return tell(status, "memory", why);
    }
    *memory = {object, c.memory.number(object, size, align), nullptr};
    return RIG_OK;
  }
  const bool fine = q.memory() == OpenClMemory::fine;
  if (kind != 0 && !fine) {
    snprintf(why, RIG_WHY, "it has no memory that the host and the device both address");
    return RIG_REFUSED;
  }
  // The platform may align to less than the start that it asks of its own objects.
  void* at = cl().SVMAlloc(c.id, kReadWrite | (fine ? kSharedFineGrain : 0), size + align, 0);
  if (at == nullptr) return no_memory(nbytes, most, why);
  const uint64_t address = (reinterpret_cast<uint64_t>(at) + align - 1) / align * align;
  auto* first = reinterpret_cast<uint8_t*>(address);
  if (fine) {
    memset(first, 0, size);
  } else {
    Status status = cl().EnqueueSVMMemFill(q.transfers(), first, &zero, 1, size, 0, nullptr, nullptr);
    if (status == kSuccess) status = cl().Finish(q.transfers());
    if (status != kSuccess) {
      cl().SVMFree(c.id, at);
      return tell(status, "memory", why);
    }
  }
  c.memory.add(address, size);
  *memory = {at, address, fine ? first : nullptr};
  return RIG_OK;
}

void free_memory(void* state, rig_memory* memory, uint64_t) {
  const Queue& q = queue(state);
  if (!q.here()) return;
  q.context().memory.remove(memory->address);
  if (q.memory() == OpenClMemory::handles) {
    cl().ReleaseMemObject(static_cast<MemId*>(memory->object));
  } else {
    cl().SVMFree(q.context().id, memory->object);
  }
}

rig_result read(void* state, const rig_memory* memory, uint64_t offset, void* into, uint64_t nbytes, char* why) {
  const Queue& q = queue(state);
  if (nbytes == 0) return RIG_OK;
  if (memory->host != nullptr) {
    memcpy(into, memory->host + offset, nbytes);
    return RIG_OK;
  }
  if (q.memory() == OpenClMemory::handles) {
    auto* object = static_cast<MemId*>(memory->object);
    return tell(cl().EnqueueReadBuffer(q.transfers(), object, 1, offset, nbytes, into, 0, nullptr, nullptr), "a read", why);
  }
  const auto* from = reinterpret_cast<const uint8_t*>(memory->address) + offset;
  return tell(cl().EnqueueSVMMemcpy(q.transfers(), 1, into, from, nbytes, 0, nullptr, nullptr), "a read", why);
}

rig_result write(void* state, const rig_memory* memory, uint64_t offset, const void* from, uint64_t nbytes, char* why) {
  const Queue& q = queue(state);
  if (nbytes == 0) return RIG_OK;
  if (memory->host != nullptr) {
    memcpy(memory->host + offset, from, nbytes);
    return RIG_OK;
  }
  if (q.memory() == OpenClMemory::handles) {
    auto* object = static_cast<MemId*>(memory->object);
    return tell(cl().EnqueueWriteBuffer(q.transfers(), object, 1, offset, nbytes, from, 0, nullptr, nullptr), "a write", why);
  }
  auto* into = reinterpret_cast<uint8_t*>(memory->address) + offset;
  return tell(cl().EnqueueSVMMemcpy(q.transfers(), 1, into, from, nbytes, 0, nullptr, nullptr), "a write", why);
}

rig_result load_image(void* state, const uint8_t* binary, uint64_t nbytes, void** image, char* why) {
  const Queue& q = queue(state);
  *image = Code::load(q.context(), q.device(), binary, nbytes, why);
  return *image ? RIG_OK : RIG_REFUSED;
}

void unload_image(void* state, void* image) {
  if (queue(state).here()) delete static_cast<Code*>(image);
}

rig_result resolve(void*, void* image, const char* name, uint64_t* function, uint64_t* max_threads, char* why) {
  const Kernel* kernel = static_cast<Code*>(image)->resolve(name, why);
  if (kernel == nullptr) return RIG_REFUSED;
  *function = reinterpret_cast<uint64_t>(kernel);
  *max_threads = kernel->group_limit;
  return RIG_OK;
}

rig_result check_part(void* state, const rig_part* part, char* why) {
  const auto* kernel = reinterpret_cast<const Kernel*>(part->function);
  return kernel->check(*part, queue(state).item_limits(), why) ? RIG_OK : RIG_REFUSED;
}

rig_result prepare(void*, const rig_work*, void** prepared, char*) {
  *prepared = nullptr;  // kernels were made when they were resolved, and keep the arguments that do not change
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
  const Queue& q = queue(state);
  Memory::Piece piece;
  uint64_t offset = 0;
  const bool own = q.context().memory.find(memory->address, piece, offset);
  if (own && (piece.object != nullptr) == (q.memory() == OpenClMemory::handles)) {
    *mapped = *memory;
    return RIG_OK;
  }
  if (memory->host != nullptr && q.reaches_host()) {
    *mapped = {memory->host, reinterpret_cast<uint64_t>(memory->host), memory->host};
    return RIG_OK;
  }
  snprintf(why, RIG_WHY, "it borrows no memory but that of its platform's devices");
  return RIG_REFUSED;
}

const rig_driver kDriver{RIG_DRIVER_VERSION, sizeof(rig_driver), describe, alloc,   free_memory, read,  write,
                         load_image,         unload_image,       resolve,  check_part, prepare,  release, submit,
                         stop,               destroy,            borrow,   nullptr};

}  // namespace
}  // namespace rig::opencl

namespace rig {

std::vector<std::string> opencl_found(std::string& why) {
  std::vector<std::string> names;
  for (const opencl::Found& f : opencl::found(why)) names.push_back(f.name);
  return names;
}

Ref<Device> make_opencl_device(const OpenClOptions& options, Error& err) {
  std::string why;
  const auto& found = opencl::found(why);
  const auto refuse = [&](const std::string& text) {
    err.set(Code::refused, options.name + ": " + text);
    return Ref<Device>();
  };
  if (options.index >= found.size()) {
    return refuse(why.empty() ? "there are " + std::to_string(found.size()) + " OpenCL devices, numbered from 0" : why);
  }
  const opencl::Found& one = found[options.index];
  opencl::Context* context = opencl::context_of(one.platform, why);
  if (context == nullptr) return refuse(why);
  auto* timeline = new Timeline(options.name);
  auto* queue = new opencl::Queue(options, one, context, timeline);
  queue->retain();  // the device's, for as long as its memory may be given back
  if (!queue->open(why)) {
    queue->release();
    return refuse(why);
  }
  return Ref<Device>(new Device(options.name, &opencl::kDriver, queue, timeline));
}

}  // namespace rig
