// The one form of host code, and how a launch of it is split.
#pragma once

#include <cstdint>

#include "rig/driver.h"

namespace rig {

__extension__ typedef unsigned __int128 Wide;

using HostFunction = void (*)(const uint64_t* words, uint64_t begin, uint64_t end);

// The first iteration of block b of `blocks` over `iterations`; exact for any 64-bit product.
inline uint64_t block_begin(uint64_t b, uint64_t iterations, uint64_t blocks) {
  return static_cast<uint64_t>(static_cast<Wide>(b) * iterations / blocks);
}

// Whether host code can run a launch's geometry and parameters; writes why not.
bool check_host_part(const rig_part& part, char* why);

}  // namespace rig
