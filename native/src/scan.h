// A structural scan of MessagePack, made before a decoder that allocates by the lengths it reads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rig {

// Where and why bytes are refused; `reason` is null where they are good.
struct ScanFault {
  size_t position = 0;
  const char* reason = nullptr;
};

// The deepest nesting that a scan can be asked for.
constexpr uint32_t kMaxScanDepth = 256;

// Check that the `size` bytes at `data` are exactly one object of the kinds that programs are made of: nil, integers of
// signed 64 bits, UTF-8 strings and arrays, each in its shortest form, at most `max_depth` arrays inside each other.
// Takes time linear in `size`, allocates nothing.
[[nodiscard]] ScanFault scan_msgpack(const uint8_t* data, size_t size, uint32_t max_depth);

// Whether `size` bytes are UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF.
[[nodiscard]] bool is_utf8(const uint8_t* at, size_t size);

}  // namespace rig
