// Images of OpenCL devices: programs built from text or SPIR-V, and their kernels with what each argument takes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cl.h"
#include "context.h"
#include "rig/driver.h"

namespace rig::opencl {

struct Argument {
  enum Kind : uint8_t { pointer, local, value };
  Kind kind = value;
  uint32_t size = 8;  // of a value
};

// A kernel of an image. Its arguments are set by the thread that works off the device's queue, and by it alone.
struct Kernel {
  KernelId* id = nullptr;
  std::string name;
  std::vector<Argument> arguments;
  uint64_t group_limit = 0;           // threads of a group
  uint64_t required[3] = {0, 0, 0};   // the group that it must have, zeros for any
  std::vector<uint64_t> words;        // the arguments as they were set last
  bool set = false;

  ~Kernel();
  // Whether the device runs it so; writes why not, to follow "runs no".
  bool check(const rig_part& part, const uint64_t item_limits[3], char* why) const;
};

class Code {
 public:
  // Null and why, with what the compiler says. `why` has RIG_LOG bytes.
  static Code* load(const Context& context, DeviceId* device, const uint8_t* binary, uint64_t nbytes, char* why);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  Kernel* resolve(const char* name, char* why);

 private:
  Code(DeviceId* device, ProgramId* program) : device_(device), program_(program) {}

  DeviceId* device_;
  ProgramId* program_;
  std::mutex lock_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace rig::opencl
