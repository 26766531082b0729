// What the devices of one OpenCL platform share: the context, and the memory that is known by handle only.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cl.h"

namespace rig::opencl {

// Memory of a context by the addresses that it has there. Objects have no address that work sees: they get numbers that
// nothing else has, so that the core reckons with them as with any address, and are found again by these.
class Memory {
 public:
  struct Piece {
    uint64_t nbytes = 0;
    MemId* object = nullptr;  // null for shared memory
  };

  uint64_t number(MemId* object, uint64_t nbytes, uint64_t alignment);
  void add(uint64_t address, uint64_t nbytes);
  void remove(uint64_t address);
  // The piece that `word` lies in, or is the handle of, and how far in; false if there is none.
  bool find(uint64_t word, Piece& piece, uint64_t& offset) const;

 private:
  mutable std::mutex lock_;
  std::map<uint64_t, Piece> pieces_;
  uint64_t next_ = uint64_t{1} << 60;  // past any address of a process, and never used twice
};

// One device that the platforms of this machine have.
struct Found {
  DeviceId* device = nullptr;
  PlatformId* platform = nullptr;
  std::string name;
};

// All that can be used, found at the first call and kept; empty and why if there are none.
const std::vector<Found>& found(std::string& why);

struct Context {
  ContextId* id = nullptr;
  Memory memory;
};

// The context over all devices of a platform, made at the first call and kept as long as the process lives. Null and why.
Context* context_of(PlatformId* platform, std::string& why);

}  // namespace rig::opencl
