// CRC-32C (Castagnoli), the checksum of programs, images and weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rig {

// The CRC-32C of `size` bytes at `data`. `seed` is the value of the bytes before them, so that
// crc32c(b, crc32c(a)) is the value of a followed by b. Uses the processor's instruction where it has one.
[[nodiscard]] uint32_t crc32c(const void* data, size_t size, uint32_t seed = 0);

// The same by tables alone: what a processor without the instruction runs, and what tests compare with.
[[nodiscard]] uint32_t crc32c_portable(const void* data, size_t size, uint32_t seed = 0);

}  // namespace rig
