// The part of the OpenCL interface that the driver uses, declared here so that nothing of a vendor is needed to build it;
// the functions are looked up when the first device is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rig::opencl {

struct PlatformId;
struct DeviceId;
struct ContextId;
struct QueueId;
struct MemId;
struct ProgramId;
struct KernelId;
struct EventId;
using Status = int32_t;
using Bits = uint64_t;
using Properties = intptr_t;

constexpr Status kSuccess = 0;
constexpr Status kDeviceNotAvailable = -2;
constexpr Status kAllocationFailure = -4;
constexpr Status kOutOfResources = -5;
constexpr Status kOutOfHostMemory = -6;
constexpr Status kInvalidArgSize = -51;

// Of platforms and devices.
constexpr uint32_t kPlatformName = 0x0902;
constexpr Bits kEveryDevice = 0xFFFFFFFF;
constexpr Bits kTypeCpu = 1 << 1;
constexpr uint32_t kDeviceType = 0x1000;
constexpr uint32_t kMaxComputeUnits = 0x1002;
constexpr uint32_t kMaxGroupSize = 0x1004;
constexpr uint32_t kMaxItemSizes = 0x1005;
constexpr uint32_t kMaxAllocation = 0x1010;
constexpr uint32_t kBaseAlignBits = 0x1019;
constexpr uint32_t kCacheBytes = 0x101E;
constexpr uint32_t kMemoryBytes = 0x101F;
constexpr uint32_t kLittleEndian = 0x1026;
constexpr uint32_t kAvailable = 0x1027;
constexpr uint32_t kCompilerAvailable = 0x1028;
constexpr uint32_t kExecution = 0x1029;
constexpr uint32_t kDeviceName = 0x102B;
constexpr uint32_t kExtensions = 0x1030;
constexpr uint32_t kLanguage = 0x103D;
constexpr uint32_t kAddressBits = 0x100D;
constexpr uint32_t kSharedMemory = 0x1053;  // CL_DEVICE_SVM_CAPABILITIES
constexpr uint32_t kIlVersion = 0x105B;
constexpr Bits kNativeKernels = 1 << 1;
constexpr Bits kSharedCoarse = 1 << 0, kSharedFine = 1 << 1, kSharedSystem = 1 << 2;

// Of queues and memory.
constexpr Properties kQueueProperties = 0x1093;
constexpr Properties kProfiling = 1 << 1;
constexpr Bits kReadWrite = 1 << 0, kSharedFineGrain = 1 << 10;
constexpr uint32_t kBufferRegion = 0x1220;
struct BufferRegion {
  size_t origin, size;
};

// Of programs and kernels.
constexpr uint32_t kBuildLog = 0x1183;
constexpr uint32_t kArgumentCount = 0x1191;
constexpr uint32_t kArgAddressSpace = 0x1196, kArgTypeName = 0x1198, kArgName = 0x119A;
constexpr uint32_t kSpaceGlobal = 0x119B, kSpaceLocal = 0x119C, kSpaceConstant = 0x119D;
constexpr uint32_t kKernelGroupSize = 0x11B0, kRequiredGroupSize = 0x11B1;

constexpr int32_t kComplete = 0;

// The functions, by their names without the prefix "cl". Those of later versions may be missing.
#define RIG_CL_FUNCTIONS(NEED, MAY)                                                                                            \
  NEED(GetPlatformIDs, (uint32_t, PlatformId**, uint32_t*))                                                                    \
  NEED(GetPlatformInfo, (PlatformId*, uint32_t, size_t, void*, size_t*))                                                       \
  NEED(GetDeviceIDs, (PlatformId*, Bits, uint32_t, DeviceId**, uint32_t*))                                                     \
  NEED(GetDeviceInfo, (DeviceId*, uint32_t, size_t, void*, size_t*))                                                           \
  NEED(ReleaseCommandQueue, (QueueId*))                                                                                        \
  NEED(Flush, (QueueId*))                                                                                                      \
  NEED(Finish, (QueueId*))                                                                                                     \
  NEED(ReleaseMemObject, (MemId*))                                                                                             \
  NEED(BuildProgram, (ProgramId*, uint32_t, DeviceId* const*, const char*, void (*)(ProgramId*, void*), void*))               \
  NEED(GetProgramBuildInfo, (ProgramId*, DeviceId*, uint32_t, size_t, void*, size_t*))                                         \
  NEED(ReleaseProgram, (ProgramId*))                                                                                           \
  NEED(ReleaseKernel, (KernelId*))                                                                                             \
  NEED(SetKernelArg, (KernelId*, uint32_t, size_t, const void*))                                                               \
  NEED(GetKernelInfo, (KernelId*, uint32_t, size_t, void*, size_t*))                                                           \
  NEED(GetKernelArgInfo, (KernelId*, uint32_t, uint32_t, size_t, void*, size_t*))                                              \
  NEED(GetKernelWorkGroupInfo, (KernelId*, DeviceId*, uint32_t, size_t, void*, size_t*))                                       \
  NEED(EnqueueReadBuffer, (QueueId*, MemId*, uint32_t, size_t, size_t, void*, uint32_t, EventId* const*, EventId**))           \
  NEED(EnqueueWriteBuffer, (QueueId*, MemId*, uint32_t, size_t, size_t, const void*, uint32_t, EventId* const*, EventId**))    \
  NEED(EnqueueCopyBuffer, (QueueId*, MemId*, MemId*, size_t, size_t, size_t, uint32_t, EventId* const*, EventId**))            \
  NEED(EnqueueFillBuffer, (QueueId*, MemId*, const void*, size_t, size_t, size_t, uint32_t, EventId* const*, EventId**))       \
  NEED(EnqueueNDRangeKernel, (QueueId*, KernelId*, uint32_t, const size_t*, const size_t*, const size_t*, uint32_t,            \
                              EventId* const*, EventId**))                                                                     \
  NEED(EnqueueNativeKernel, (QueueId*, void (*)(void*), void*, size_t, uint32_t, MemId* const*, const void**, uint32_t,        \
                             EventId* const*, EventId**))                                                                      \
  NEED(EnqueueMarkerWithWaitList, (QueueId*, uint32_t, EventId* const*, EventId**))                                            \
  NEED(SetEventCallback, (EventId*, int32_t, void (*)(EventId*, int32_t, void*), void*))                                       \
  NEED(ReleaseEvent, (EventId*))                                                                                               \
  MAY(EnqueueSVMMemcpy, Status, (QueueId*, uint32_t, void*, const void*, size_t, uint32_t, EventId* const*, EventId**))        \
  MAY(EnqueueSVMMemFill, Status, (QueueId*, void*, const void*, size_t, size_t, uint32_t, EventId* const*, EventId**))         \
  MAY(SetKernelArgSVMPointer, Status, (KernelId*, uint32_t, const void*))                                                      \
  MAY(SVMAlloc, void*, (ContextId*, Bits, size_t, uint32_t))                                                                   \
  MAY(SVMFree, void, (ContextId*, void*))                                                                                      \
  MAY(CreateContext, ContextId*, (const Properties*, uint32_t, DeviceId* const*,                                               \
                                  void (*)(const char*, const void*, size_t, void*), void*, Status*))                          \
  MAY(CreateCommandQueue, QueueId*, (ContextId*, DeviceId*, Bits, Status*))                                                    \
  MAY(CreateCommandQueueWithProperties, QueueId*, (ContextId*, DeviceId*, const Bits*, Status*))                               \
  MAY(CreateBuffer, MemId*, (ContextId*, Bits, size_t, void*, Status*))                                                        \
  MAY(CreateSubBuffer, MemId*, (MemId*, Bits, uint32_t, const void*, Status*))                                                 \
  MAY(CreateProgramWithSource, ProgramId*, (ContextId*, uint32_t, const char* const*, const size_t*, Status*))                 \
  MAY(CreateProgramWithIL, ProgramId*, (ContextId*, const void*, size_t, Status*))                                             \
  MAY(CreateKernel, KernelId*, (ProgramId*, const char*, Status*))

struct Cl {
#define RIG_NEED(name, parameters) Status(*name) parameters = nullptr;
#define RIG_MAY(name, result, parameters) result(*name) parameters = nullptr;
  RIG_CL_FUNCTIONS(RIG_NEED, RIG_MAY)
#undef RIG_NEED
#undef RIG_MAY

  std::string missing;  // why there is none, empty if there is
};

// The library's functions, looked up at the first call and kept.
const Cl& cl();

// A status as its name without "CL_", such as INVALID_VALUE, and its number where it has no name here.
std::string status_name(Status status);

// Text that a Get...Info function gives, empty where it gives none. `get(nbytes, into, needed)` calls it.
template <typename Get>
std::string info_text(Get get) {
  size_t size = 0;
  if (get(size_t{0}, nullptr, &size) != kSuccess || size == 0) return {};
  std::string text(size, '\0');
  if (get(size, static_cast<void*>(text.data()), nullptr) != kSuccess) return {};
  while (!text.empty() && (text.back() == '\0' || text.back() == ' ' || text.back() == '\n')) text.pop_back();
  return text;
}

// A value of a device, zero where the device does not tell it.
template <typename T>
T device_value(DeviceId* device, uint32_t what) {
  T value{};
  return cl().GetDeviceInfo(device, what, sizeof value, &value, nullptr) == kSuccess ? value : T{};
}

inline std::string device_text(DeviceId* device, uint32_t what) {
  return info_text([&](size_t n, void* into, size_t* needed) { return cl().GetDeviceInfo(device, what, n, into, needed); });
}

}  // namespace rig::opencl
