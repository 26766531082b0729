#include "context.h"

#include <signal.h>

#include "fork.h"

namespace rig::opencl {
namespace {

// Threads that a platform starts inherit the mask: signals are for the threads that know Python.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

struct Machine {
  std::vector<Found> devices;
  std::string why;
  uint32_t generation = 0;
};

void look_at(PlatformId* platform, Machine& out, std::string& unusable) {
  uint32_t count = 0;
  if (cl().GetDeviceIDs(platform, kEveryDevice, 0, nullptr, &count) != kSuccess || count == 0) return;
  std::vector<DeviceId*> devices(count);
  if (cl().GetDeviceIDs(platform, kEveryDevice, count, devices.data(), nullptr) != kSuccess) return;
  for (DeviceId* d : devices) {
    const std::string name = device_text(d, kDeviceName);
    const char* lacks = device_value<uint32_t>(d, kAvailable) == 0           ? "it is not available"
                        : device_value<uint32_t>(d, kCompilerAvailable) == 0 ? "it has no compiler"
                        : device_value<uint32_t>(d, kLittleEndian) == 0      ? "it is big-endian"
                                                                             : nullptr;
    if (lacks) {
      unusable += (unusable.empty() ? "" : "; ") + name + ": " + lacks;
    } else {
      out.devices.push_back({d, platform, name});
    }
  }
}

Machine look() {
  Machine out;
  out.generation = fork_generation();
  out.why = cl().missing;
  if (!out.why.empty()) return out;
  const WithoutSignals quiet;
  uint32_t count = 0;
  const Status status = cl().GetPlatformIDs(0, nullptr, &count);
  if (status != kSuccess || count == 0) {
    out.why = "the OpenCL loader finds no platform: none is installed";
    return out;
  }
  std::vector<PlatformId*> platforms(count);
  cl().GetPlatformIDs(count, platforms.data(), nullptr);
  std::string unusable;
  for (PlatformId* p : platforms) look_at(p, out, unusable);
  if (out.devices.empty()) {
    out.why = unusable.empty() ? "the OpenCL platforms of this machine have no devices" : "no OpenCL device can be used: " + unusable;
  }
  return out;
}

}  // namespace

uint64_t Memory::number(MemId* object, uint64_t nbytes, uint64_t alignment) {
  std::lock_guard lock(lock_);
  const uint64_t address = next_;
  // A byte past the end is still in no other piece, so that an end is told from a beginning.
  next_ += (nbytes + alignment) / alignment * alignment;
  pieces_[address] = {nbytes, object};
  return address;
}

void Memory::add(uint64_t address, uint64_t nbytes) {
  std::lock_guard lock(lock_);
  pieces_[address] = {nbytes, nullptr};
}

void Memory::remove(uint64_t address) {
  std::lock_guard lock(lock_);
  pieces_.erase(address);
}

bool Memory::find(uint64_t word, Piece& piece, uint64_t& offset) const {
  std::lock_guard lock(lock_);
  auto at = pieces_.upper_bound(word);
  if (at != pieces_.begin()) {
    --at;
    if (word - at->first <= at->second.nbytes) {
      piece = at->second;
      offset = word - at->first;
      return true;
    }
  }
  for (const auto& [address, one] : pieces_) {
    if (one.object != nullptr && reinterpret_cast<uint64_t>(one.object) == word) {
      piece = one;
      offset = 0;
      return true;
    }
  }
  return false;
}

const std::vector<Found>& found(std::string& why) {
  static const Machine* machine = new Machine(look());  // never destroyed: native threads may outlive static destructors
  static const std::vector<Found> none;
  if (machine->generation != fork_generation() && !machine->devices.empty()) {
    why = "OpenCL was looked up before this process was forked, its threads stayed in the parent";
    return none;
  }
  why = machine->why;
  return machine->devices;
}

Context* context_of(PlatformId* platform, std::string& why) {
  static std::mutex& lock = *new std::mutex();
  static auto& contexts = *new std::map<PlatformId*, Context*>();
  std::lock_guard guard(lock);
  Context*& context = contexts[platform];
  if (context != nullptr) return context;
  std::vector<DeviceId*> devices;
  std::string unused;
  for (const Found& f : found(unused)) {
    if (f.platform == platform) devices.push_back(f.device);
  }
  constexpr Properties kPlatform = 0x1084;
  const Properties properties[] = {kPlatform, reinterpret_cast<Properties>(platform), 0};
  const WithoutSignals quiet;
  Status status = kSuccess;
  ContextId* id = cl().CreateContext(properties, static_cast<uint32_t>(devices.size()), devices.data(), nullptr, nullptr, &status);
  if (id == nullptr || status != kSuccess) {
    why = "its platform makes no context: " + status_name(status);
    return nullptr;
  }
  context = new Context();
  context->id = id;
  return context;
}

}  // namespace rig::opencl
