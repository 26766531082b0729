#include "host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "host_call.h"
#include "image.h"

namespace rig {
namespace {
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMapped = 64 << 10;  // from here on memory is whole pages
constexpr uint64_t kHuge = 2 << 20;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
}  // namespace

uint8_t* host_alloc(uint64_t nbytes) {
  if (nbytes > (uint64_t{1} << 56)) return nullptr;
  if (nbytes < kMapped) {
    const uint64_t size = round_up(nbytes == 0 ? 1 : nbytes, 64);
    void* at = aligned_alloc(64, size);
    if (at != nullptr) memset(at, 0, size);
    return static_cast<uint8_t*>(at);
  }
  const uint64_t size = round_up(nbytes, kPage);
  // A huge page starts on its own size: map more and give the ends back.
  const uint64_t extra = size >= kHuge ? kHuge : 0;
  void* mapped = mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* at = static_cast<uint8_t*>(mapped);
  if (extra != 0) {
    const uint64_t lead = round_up(reinterpret_cast<uint64_t>(at), kHuge) - reinterpret_cast<uint64_t>(at);
    if (lead != 0) munmap(at, lead);
    if (extra != lead) munmap(at + lead + size, extra - lead);
    at += lead;
    madvise(at, size, MADV_HUGEPAGE);
  }
  return at;
}

void host_free(uint8_t* at, uint64_t nbytes) {
  if (nbytes < kMapped) {
    free(at);
  } else {
    munmap(at, round_up(nbytes, kPage));
  }
}

rig_result host_load_image(void*, const uint8_t* binary, uint64_t nbytes, void** image, char* why) {
  *image = HostCode::load(binary, nbytes, why);
  return *image ? RIG_OK : RIG_REFUSED;
}

void host_unload_image(void*, void* image) { delete static_cast<HostCode*>(image); }

rig_result host_resolve(void*, void* image, const char* name, uint64_t* function, uint64_t* max_threads, char* why) {
  *max_threads = 0;
  return static_cast<HostCode*>(image)->resolve(name, function, why) ? RIG_OK : RIG_REFUSED;
}

rig_result host_check_part(void*, const rig_part* part, char* why) {
  return check_host_part(*part, why) ? RIG_OK : RIG_REFUSED;
}

}  // namespace rig
