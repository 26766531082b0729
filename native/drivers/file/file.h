// A file as a device: memory that lies in it, read and written by a thread of the device, and no work but copies.
#pragma once

#include <cstdint>
#include <string>

#include "device.h"

namespace rig {

struct FileDeviceOptions {
  std::string name;
  int fd = -1;  // of a regular file; closed with the device, or at once if none is made
  bool writable = false;
  uint64_t nbytes = 0;  // the file's size, which its memory has for good
};

// The device's memory() is the file as it is. What is allocated besides lies behind it, and the file grows; it shrinks again
// as that is freed, and when the device is closed. Null if the system gives no thread.
Ref<Device> make_file_device(const FileDeviceOptions& options);

}  // namespace rig
