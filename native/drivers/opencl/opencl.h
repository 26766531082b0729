// OpenCL devices: whatever the loader of this machine finds, opened by number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device.h"

namespace rig {

// How the memory of an OpenCL device is known.
enum class OpenClMemory {
  best,     // the first of the following that the device has
  fine,     // by address, and the host addresses it too
  coarse,   // by address
  handles,  // as objects, which work names from their first byte or from a multiple of the device's alignment
};

struct OpenClOptions {
  uint32_t index = 0;  // among the devices found
  std::string name;
  OpenClMemory memory = OpenClMemory::best;
  int64_t fail_at = 0;  // the submission at which the device is lost, 0 for never
};

// What each device found is called by its maker; empty and why if there are none. Looked up once in a process.
std::vector<std::string> opencl_found(std::string& why);
Ref<Device> make_opencl_device(const OpenClOptions& options, Error& err);

}  // namespace rig
