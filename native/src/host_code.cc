// Loading host code: flat images (see docs/format.md) and shared libraries.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "crc32c.h"
#include "host_info.h"
#include "image.h"

// Helpers of the compiler's runtime library that objects may call for half floats; libgcc has them.
extern "C" {
#if defined(__x86_64__)
_Float16 __truncsfhf2(float);
float __extendhfsf2(_Float16);
_Float16 __truncdfhf2(double);
#endif
}

namespace rig {
namespace {

constexpr char kFlatMagic[8] = {'\x93', 'R', 'I', 'G', 'I', 'M', 'G', '\n'};
constexpr uint32_t kFlatVersion = 1;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kRecord = 16;

struct FlatHeader {
  char magic[8];
  uint32_t version, body_offset;
  uint64_t body_size;
  uint32_t exports, imports, strings_size, requires_offset, requires_length, calling, crc;
  uint32_t zero[3];
};
static_assert(sizeof(FlatHeader) == 64);

struct Import {
  const char* name;
  void* address;
};

// A bfloat16 is returned in the register of a half float.
_Float16 bits_to_half(uint32_t bits) {
  const auto low = static_cast<uint16_t>(bits);
  _Float16 half;
  memcpy(&half, &low, 2);
  return half;
}

// To bfloat16, to the nearest, ties to even.
uint32_t bfloat_bits(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40;  // a quiet NaN
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
_Float16 float_to_bfloat(float value) { return bits_to_half(bfloat_bits(std::bit_cast<uint32_t>(value))); }
_Float16 double_to_bfloat(double value) {
  auto f = static_cast<float>(value);
  auto bits = std::bit_cast<uint32_t>(f);
  // Rounded to odd first, so that the second rounding sees what the first one dropped.
  if (std::isfinite(value) && static_cast<double>(f) != value && (bits & 1) == 0) {
    bits = std::fabs(static_cast<double>(f)) > std::fabs(value) ? bits - 1 : bits + 1;
  }
  return bits_to_half(bfloat_bits(bits));
}

template <typename F>
void* address_of(F* f) {
  return reinterpret_cast<void*>(f);
}

const Import* imports(size_t& count) {
  static const Import table[] = {
      {"truncf", address_of<float(float)>(truncf)},
      {"trunc", address_of<double(double)>(trunc)},
      {"floorf", address_of<float(float)>(floorf)},
      {"floor", address_of<double(double)>(floor)},
      {"ceilf", address_of<float(float)>(ceilf)},
      {"ceil", address_of<double(double)>(ceil)},
      {"sqrtf", address_of<float(float)>(sqrtf)},
      {"sqrt", address_of<double(double)>(sqrt)},
      {"fmaf", address_of<float(float, float, float)>(fmaf)},
      {"fma", address_of<double(double, double, double)>(fma)},
      {"fmodf", address_of<float(float, float)>(fmodf)},
      {"fmod", address_of<double(double, double)>(fmod)},
      {"__truncsfbf2", reinterpret_cast<void*>(float_to_bfloat)},
      {"__truncdfbf2", reinterpret_cast<void*>(double_to_bfloat)},
      {"memcpy", address_of<void*(void*, const void*, size_t)>(memcpy)},
      {"memmove", address_of<void*(void*, const void*, size_t)>(memmove)},
      {"memset", address_of<void*(void*, int, size_t)>(memset)},
#if defined(__x86_64__)
      {"__truncsfhf2", reinterpret_cast<void*>(__truncsfhf2)},
      {"__extendhfsf2", reinterpret_cast<void*>(__extendhfsf2)},
      {"__truncdfhf2", reinterpret_cast<void*>(__truncdfhf2)},
#endif
  };
  count = std::size(table);
  return table;
}

bool refuse(char* why, const char* format, auto... values) {
  if constexpr (sizeof...(values) == 0) {
    snprintf(why, RIG_WHY, "%s", format);
  } else {
    snprintf(why, RIG_WHY, format, values...);
  }
  return false;
}

uint32_t word32(const uint8_t* at) {
  uint32_t v;
  memcpy(&v, at, 4);
  return v;
}
uint64_t word64(const uint8_t* at) {
  uint64_t v;
  memcpy(&v, at, 8);
  return v;
}

// The header and its tables hold together with the length; sets nothing.
bool check_flat(const FlatHeader& h, const uint8_t* binary, uint64_t nbytes, char* why) {
  if (h.version != kFlatVersion) {
    return refuse(why, "flat image of format version %u, this is version %u", h.version, kFlatVersion);
  }
  const uint64_t tables = sizeof(FlatHeader) + (uint64_t{h.exports} + h.imports) * kRecord + h.strings_size;
  if (h.body_offset != (tables + 63) / 64 * 64 || h.body_offset > nbytes || nbytes - h.body_offset != h.body_size ||
      h.body_size == 0) {
    return refuse(why, "flat image of %llu bytes whose header states other sizes", static_cast<unsigned long long>(nbytes));
  }
  for (uint64_t at = tables; at < h.body_offset; ++at) {
    if (binary[at] != 0) return refuse(why, "flat image with more than zeros before its body");
  }
  if ((h.zero[0] | h.zero[1] | h.zero[2]) != 0) return refuse(why, "flat image whose header's last 12 bytes are not zero");
  if (h.requires_offset > h.strings_size || h.requires_length > h.strings_size - h.requires_offset) {
    return refuse(why, "flat image whose needed arch lies outside its strings");
  }
  if (crc32c(binary + sizeof(FlatHeader), nbytes - sizeof(FlatHeader), 0) != h.crc) {
    return refuse(why, "flat image with a wrong checksum");
  }
  return true;
}

}  // namespace

HostCode* HostCode::load(const uint8_t* binary, uint64_t nbytes, char* why) {
  auto* code = new HostCode();
  bool ok = false;
  if (nbytes >= 8 && memcmp(binary, kFlatMagic, 8) == 0) {
    ok = code->load_flat(binary, nbytes, why);
  } else if (nbytes >= 4 && memcmp(binary, "\x7f" "ELF", 4) == 0) {
    ok = code->load_shared(binary, nbytes, why);
  } else {
    refuse(why, "image of %llu bytes that is neither a flat image nor a shared library",
           static_cast<unsigned long long>(nbytes));
  }
  if (ok) return code;
  delete code;
  return nullptr;
}

bool HostCode::load_flat(const uint8_t* binary, uint64_t nbytes, char* why) {
  FlatHeader h;
  if (nbytes < sizeof h) return refuse(why, "flat image of %llu bytes, cut within its header", static_cast<unsigned long long>(nbytes));
  memcpy(&h, binary, sizeof h);
  if (!check_flat(h, binary, nbytes, why)) return false;
  const uint8_t* records = binary + sizeof h;
  const uint8_t* strings = records + (uint64_t{h.exports} + h.imports) * kRecord;
  strings_.assign(reinterpret_cast<const char*>(strings), h.strings_size);
  const std::string needed = strings_.substr(h.requires_offset, h.requires_length);
  if (h.calling != 0) return refuse(why, "flat image of the Windows calling convention, this machine has System V's");
  if (!arch_runs(host_info().arch, needed)) {
    return refuse(why, "flat image that needs %s, this machine is %s", needed.c_str(), host_info().arch.c_str());
  }
  const auto name_of = [&](const uint8_t* record, std::string_view& name) {
    const uint32_t offset = word32(record), length = word32(record + 4);
    if (offset > h.strings_size || length > h.strings_size - offset) return false;
    name = std::string_view(strings_).substr(offset, length);
    return true;
  };
  std::string_view last;
  for (uint32_t i = 0; i < h.exports; ++i) {
    const uint8_t* r = records + i * kRecord;
    std::string_view name;
    if (!name_of(r, name) || word64(r + 8) >= h.body_size || (i > 0 && name <= last)) {
      return refuse(why, "flat image whose export %u is out of place", i);
    }
    exports_.push_back({word32(r), word32(r + 4), word64(r + 8)});
    last = name;
  }
  mapped_ = (h.body_size + kPage - 1) / kPage * kPage;
  void* at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    mapped_ = 0;
    return refuse(why, "no memory for %llu bytes of code", static_cast<unsigned long long>(h.body_size));
  }
  body_ = static_cast<uint8_t*>(at);
  memcpy(body_, binary + h.body_offset, h.body_size);
  size_t count = 0;
  const Import* table = imports(count);
  for (uint32_t i = 0; i < h.imports; ++i) {
    const uint8_t* r = records + (uint64_t{h.exports} + i) * kRecord;
    std::string_view name;
    const uint64_t slot = word64(r + 8);
    if (!name_of(r, name) || slot > h.body_size || h.body_size - slot < 8) {
      return refuse(why, "flat image whose import %u is out of place", i);
    }
    const Import* found = std::find_if(table, table + count, [&](const Import& t) { return name == t.name; });
    if (found == table + count) {
      return refuse(why, "flat image that imports %.80s, which is not among the functions given to images",
                    std::string(name).c_str());
    }
    memcpy(body_ + slot, &found->address, 8);
  }
  // Written first, executable after: never both at once.
  if (mprotect(body_, mapped_, PROT_READ | PROT_EXEC) != 0) return refuse(why, "the system does not map code executable");
  return true;
}

bool HostCode::load_shared(const uint8_t* binary, uint64_t nbytes, char* why) {
  descriptor_ = memfd_create("rig-image", MFD_CLOEXEC);
  if (descriptor_ < 0) return refuse(why, "the system makes no memory file for a shared library");
  for (uint64_t done = 0; done < nbytes;) {
    const ssize_t n = write(descriptor_, binary + done, nbytes - done);
    if (n <= 0) return refuse(why, "the shared library does not fit in memory");
    done += static_cast<uint64_t>(n);
  }
  // The descriptor stays open until the library is closed: a later file of the same number would be taken for this one.
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor_);
  library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* text = dlerror();
    return refuse(why, "shared library that does not load: %.180s", text ? text : "no reason given");
  }
  return true;
}

HostCode::~HostCode() {
  if (library_) dlclose(library_);
  if (descriptor_ >= 0) close(descriptor_);
  if (mapped_) munmap(body_, mapped_);
}

bool HostCode::resolve(const char* name, uint64_t* address, char* why) const {
  if (library_) {
    void* at = dlsym(library_, name);
    if (at == nullptr) return refuse(why, "the image has no function named %.100s", name);
    *address = reinterpret_cast<uint64_t>(at);
    return true;
  }
  const std::string_view wanted(name);
  const auto name_of = [&](const Export& e) { return std::string_view(strings_).substr(e.name_offset, e.name_length); };
  const auto it = std::lower_bound(exports_.begin(), exports_.end(), wanted,
                                   [&](const Export& e, std::string_view w) { return name_of(e) < w; });
  if (it == exports_.end() || name_of(*it) != wanted) return refuse(why, "the image has no function named %.100s", name);
  *address = reinterpret_cast<uint64_t>(body_) + it->offset;
  return true;
}

}  // namespace rig
