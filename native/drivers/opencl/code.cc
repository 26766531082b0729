#include "code.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace rig::opencl {
namespace {

constexpr uint32_t kSpirV = 0x07230203;

bool is_spirv(const uint8_t* binary, uint64_t nbytes) {
  uint32_t word = 0;
  if (nbytes < 4) return false;
  memcpy(&word, binary, 4);
  return word == kSpirV || word == __builtin_bswap32(kSpirV);
}

// A log may be long: its beginning, which names the first fault, at a line's end.
void tell_log(const char* what, const std::string& log, char* why) {
  const size_t room = RIG_LOG - 200;
  const size_t end = log.size() <= room ? log.size() : log.rfind('\n', room);
  const size_t kept = end == std::string::npos ? room : end;
  const std::string rest = kept < log.size() ? "\n(" + std::to_string(log.size() - kept) + " bytes more)" : "";
  snprintf(why, RIG_LOG, "%s:\n%.*s%s", what, static_cast<int>(kept), log.empty() ? "(its compiler says nothing)" : log.c_str(),
           rest.c_str());
}

// The bytes of a value by its type's name, 0 for a name that is not one of the language's.
uint32_t size_of(std::string_view type) {
  if (type.rfind("unsigned ", 0) == 0) type.remove_prefix(9);
  uint32_t width = 1;
  const size_t digits = type.find_first_of("0123456789");
  if (digits != std::string_view::npos) {
    width = static_cast<uint32_t>(atoi(std::string(type.substr(digits)).c_str()));
    if (width == 3) width = 4;
    type = type.substr(0, digits);
  }
  static constexpr struct {
    std::string_view name;
    uint32_t size;
  } kTypes[] = {{"char", 1}, {"uchar", 1}, {"short", 2}, {"ushort", 2}, {"half", 2},  {"int", 4},
                {"uint", 4}, {"float", 4}, {"long", 8},  {"ulong", 8},  {"double", 8}};
  for (const auto& t : kTypes) {
    if (t.name == type) return t.size * width;
  }
  return 0;
}

std::string argument_text(KernelId* kernel, uint32_t i, uint32_t what) {
  return info_text([&](size_t n, void* into, size_t* needed) { return cl().GetKernelArgInfo(kernel, i, what, n, into, needed); });
}

// Find out what argument i takes; false and why if a word cannot give it.
bool read_argument(const Kernel& kernel, uint32_t i, Argument& out, char* why) {
  uint32_t space = 0;
  const Status status = cl().GetKernelArgInfo(kernel.id, i, kArgAddressSpace, sizeof space, &space, nullptr);
  if (status != kSuccess) {
    snprintf(why, RIG_WHY, "its platform does not tell what argument %u of '%s' is: %s", i, kernel.name.c_str(), status_name(status).c_str());
    return false;
  }
  if (space == kSpaceLocal) {
    out = {Argument::local, 0};
    return true;
  }
  const std::string type = argument_text(kernel.id, i, kArgTypeName);
  const bool object = type.rfind("image", 0) == 0 || type.rfind("sampler", 0) == 0 || type.rfind("pipe", 0) == 0;
  if (!object && (space == kSpaceGlobal || space == kSpaceConstant)) {
    out = {Argument::pointer, 8};
    return true;
  }
  uint32_t size = object ? 0 : size_of(type);
  if (size == 0 && !object) {
    // A name of the program's own: its size is the one that is not refused.
    const uint64_t zero[16] = {};
    for (const uint32_t n : {8u, 4u, 2u, 1u, 16u, 32u, 64u, 128u}) {
      if (cl().SetKernelArg(kernel.id, i, n, zero) != kSuccess) continue;
      size = n;
      break;
    }
  }
  if (size == 0 || size > 8) {
    const std::string name = argument_text(kernel.id, i, kArgName);
    snprintf(why, RIG_WHY, "argument %u of '%s'%s%s is of type %s%s: a word gives a pointer or a value of at most 8 bytes", i,
             kernel.name.c_str(), name.empty() ? "" : ", ", name.c_str(), type.c_str(),
             size == 0 ? "" : (", " + std::to_string(size) + " bytes").c_str());
    return false;
  }
  out = {Argument::value, size};
  return true;
}

}  // namespace

Kernel::~Kernel() {
  if (id != nullptr) cl().ReleaseKernel(id);
}

bool Kernel::check(const rig_part& part, const uint64_t item_limits[3], char* why) const {
  const auto n = [](uint64_t v) { return static_cast<long long>(v); };
  if (part.params_size != 8 * arguments.size()) {
    snprintf(why, RIG_WHY, "launch of '%s' with %llu bytes of parameters: it takes %zu words of 8 bytes, one for each argument",
             name.c_str(), static_cast<unsigned long long>(part.params_size), arguments.size());
    return false;
  }
  if (part.shared != 0) {
    snprintf(why, RIG_WHY, "launch of '%s' with %lld bytes of shared memory: the word of a local argument says its bytes",
             name.c_str(), n(part.shared));
    return false;
  }
  bool good = true, empty = false;
  uint64_t group = 1;
  for (int k = 0; k < 3; ++k) {
    uint64_t items = 0;
    good = good && n(part.groups[k]) >= 0 && n(part.threads[k]) >= 0 && part.threads[k] <= item_limits[k] &&
           !__builtin_mul_overflow(group, part.threads[k], &group) && !__builtin_mul_overflow(part.groups[k], part.threads[k], &items);
    empty = empty || part.groups[k] == 0 || part.threads[k] == 0;
  }
  const bool fixed = required[0] != 0;
  good = good && (empty || (group <= group_limit && (!fixed || std::equal(required, required + 3, part.threads))));
  if (good) return true;
  std::string most = "at most " + std::to_string(group_limit) + " threads a group";
  if (fixed) most = "groups of " + std::to_string(required[0]) + " x " + std::to_string(required[1]) + " x " + std::to_string(required[2]);
  snprintf(why, RIG_WHY, "launch of '%s' over %lld x %lld x %lld groups of %lld x %lld x %lld threads: it takes %s", name.c_str(),
           n(part.groups[0]), n(part.groups[1]), n(part.groups[2]), n(part.threads[0]), n(part.threads[1]), n(part.threads[2]),
           most.c_str());
  return false;
}

Code* Code::load(const Context& context, DeviceId* device, const uint8_t* binary, uint64_t nbytes, char* why) {
  const bool spirv = is_spirv(binary, nbytes);
  if (nbytes == 0 || (!spirv && memchr(binary, 0, nbytes) != nullptr)) {
    snprintf(why, RIG_LOG, "the image is neither OpenCL C, which is text, nor SPIR-V");
    return nullptr;
  }
  if (spirv && (cl().CreateProgramWithIL == nullptr || device_text(device, kIlVersion).find("SPIR-V") == std::string::npos)) {
    snprintf(why, RIG_LOG, "the image is SPIR-V, which the device does not take; it takes OpenCL C");
    return nullptr;
  }
  Status status = kSuccess;
  ProgramId* program = nullptr;
  if (spirv) {
    program = cl().CreateProgramWithIL(context.id, binary, nbytes, &status);
  } else {
    const auto* text = reinterpret_cast<const char*>(binary);
    const size_t length = nbytes;
    program = cl().CreateProgramWithSource(context.id, 1, &text, &length, &status);
  }
  if (program == nullptr || status != kSuccess) {
    snprintf(why, RIG_LOG, "the image is not taken: %s", status_name(status).c_str());
    return nullptr;
  }
  status = cl().BuildProgram(program, 1, &device, "-cl-kernel-arg-info", nullptr, nullptr);
  if (status != kSuccess) {
    const std::string log = info_text(
        [&](size_t n, void* into, size_t* needed) { return cl().GetProgramBuildInfo(program, device, kBuildLog, n, into, needed); });
    tell_log(("the image does not build, " + status_name(status)).c_str(), log, why);
    cl().ReleaseProgram(program);
    return nullptr;
  }
  return new Code(device, program);
}

Code::~Code() {
  kernels_.clear();
  cl().ReleaseProgram(program_);
}

Kernel* Code::resolve(const char* name, char* why) {
  std::lock_guard guard(lock_);
  if (const auto known = kernels_.find(name); known != kernels_.end()) return known->second.get();
  Status status = kSuccess;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  kernel->id = cl().CreateKernel(program_, name, &status);
  if (kernel->id == nullptr || status != kSuccess) {
    constexpr Status kInvalidKernelName = -46;
    if (status == kInvalidKernelName) {
      snprintf(why, RIG_WHY, "the image has no function named %.100s", name);
    } else {
      snprintf(why, RIG_WHY, "the image gives no function named %.100s: %s", name, status_name(status).c_str());
    }
    return nullptr;
  }
  uint32_t count = 0;
  cl().GetKernelInfo(kernel->id, kArgumentCount, sizeof count, &count, nullptr);
  kernel->arguments.resize(count);
  kernel->words.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!read_argument(*kernel, i, kernel->arguments[i], why)) return nullptr;
  }
  size_t limit = 0, required[3] = {0, 0, 0};
  cl().GetKernelWorkGroupInfo(kernel->id, device_, kKernelGroupSize, sizeof limit, &limit, nullptr);
  cl().GetKernelWorkGroupInfo(kernel->id, device_, kRequiredGroupSize, sizeof required, required, nullptr);
  kernel->group_limit = limit;
  std::copy(required, required + 3, kernel->required);
  return (kernels_[name] = std::move(kernel)).get();
}

}  // namespace rig::opencl
