// Compiled code loaded on a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device.h"

namespace rig {

struct Function {
  uint64_t entry = 0;        // what compiled code calls the function by
  uint64_t max_threads = 0;  // the most threads a group may have, 0 for no limit
};

class Image : public RefCounted {
 public:
  static Ref<Image> load(const Ref<Device>& device, const uint8_t* binary, uint64_t nbytes, Error& err);
  bool resolve(const std::string& name, Function& out, Error& err);
  Device& device() const { return *device_; }
  const Ref<Device>& device_ref() const { return device_; }

 protected:
  ~Image() override;

 private:
  Image(Ref<Device> device, void* object) : device_(std::move(device)), object_(object) {}
  Ref<Device> device_;
  void* object_;
};

// Host code, as the host's and the memory devices' drivers load it.
class HostCode {
 public:
  // A flat image or a shared library, told apart by the first bytes. Null and why if it is refused.
  static HostCode* load(const uint8_t* binary, uint64_t nbytes, char* why);
  ~HostCode();
  HostCode(const HostCode&) = delete;
  HostCode& operator=(const HostCode&) = delete;
  bool resolve(const char* name, uint64_t* address, char* why) const;

 private:
  HostCode() = default;
  bool load_flat(const uint8_t* binary, uint64_t nbytes, char* why);
  bool load_shared(const uint8_t* binary, uint64_t nbytes, char* why);

  struct Export {
    uint32_t name_offset;
    uint32_t name_length;
    uint64_t offset;
  };
  uint8_t* body_ = nullptr;
  uint64_t mapped_ = 0;
  std::vector<Export> exports_;  // sorted by name
  std::string strings_;
  void* library_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace rig
