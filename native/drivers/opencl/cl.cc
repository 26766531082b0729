#include "cl.h"

#include <dlfcn.h>

#include <iterator>

namespace rig::opencl {
namespace {

Cl look_up() {
  Cl out;
  void* library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    out.missing = "there is no OpenCL loader: " + std::string(why ? why : "libOpenCL.so.1 cannot be opened");
    return out;
  }
  const auto find = [&](auto& function, const char* name) {
    using Function = std::remove_reference_t<decltype(function)>;
    function = reinterpret_cast<Function>(dlsym(library, name));
  };
#define RIG_NEED(name, parameters)                                                                        \
  find(out.name, "cl" #name);                                                                             \
  if (out.name == nullptr) out.missing = "libOpenCL.so.1 has no cl" #name ", it is older than OpenCL 1.2";
#define RIG_MAY(name, result, parameters) find(out.name, "cl" #name);
  RIG_CL_FUNCTIONS(RIG_NEED, RIG_MAY)
#undef RIG_NEED
#undef RIG_MAY
  const bool whole = out.CreateContext && (out.CreateCommandQueue || out.CreateCommandQueueWithProperties) && out.CreateBuffer &&
                     out.CreateSubBuffer && out.CreateProgramWithSource && out.CreateKernel;
  if (out.missing.empty() && !whole) out.missing = "libOpenCL.so.1 lacks functions of OpenCL 1.2";
  return out;
}

constexpr const char* kNames[] = {
    "SUCCESS", "DEVICE_NOT_FOUND", "DEVICE_NOT_AVAILABLE", "COMPILER_NOT_AVAILABLE", "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "PROFILING_INFO_NOT_AVAILABLE", "MEM_COPY_OVERLAP", "IMAGE_FORMAT_MISMATCH",
    "IMAGE_FORMAT_NOT_SUPPORTED", "BUILD_PROGRAM_FAILURE", "MAP_FAILURE", "MISALIGNED_SUB_BUFFER_OFFSET",
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "COMPILE_PROGRAM_FAILURE", "LINKER_NOT_AVAILABLE", "LINK_PROGRAM_FAILURE",
    "DEVICE_PARTITION_FAILED", "KERNEL_ARG_INFO_NOT_AVAILABLE"};
constexpr const char* kInvalid[] = {
    "VALUE", "DEVICE_TYPE", "PLATFORM", "DEVICE", "CONTEXT", "QUEUE_PROPERTIES", "COMMAND_QUEUE", "HOST_PTR", "MEM_OBJECT",
    "IMAGE_FORMAT_DESCRIPTOR", "IMAGE_SIZE", "SAMPLER", "BINARY", "BUILD_OPTIONS", "PROGRAM", "PROGRAM_EXECUTABLE",
    "KERNEL_NAME", "KERNEL_DEFINITION", "KERNEL", "ARG_INDEX", "ARG_VALUE", "ARG_SIZE", "KERNEL_ARGS", "WORK_DIMENSION",
    "WORK_GROUP_SIZE", "WORK_ITEM_SIZE", "GLOBAL_OFFSET", "EVENT_WAIT_LIST", "EVENT", "OPERATION", "GL_OBJECT", "BUFFER_SIZE",
    "MIP_LEVEL", "GLOBAL_WORK_SIZE"};

}  // namespace

const Cl& cl() {
  static const Cl* found = new Cl(look_up());  // the library is never closed: its threads may run until the end
  return *found;
}

std::string status_name(Status status) {
  const auto at = static_cast<size_t>(-static_cast<int64_t>(status));
  if (status <= 0 && at < std::size(kNames)) return kNames[at];
  if (status <= -30 && at - 30 < std::size(kInvalid)) return std::string("INVALID_") + kInvalid[at - 30];
  return "OpenCL status " + std::to_string(status);
}

}  // namespace rig::opencl
