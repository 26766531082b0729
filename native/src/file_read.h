// Reading a file's bytes straight into place, with their checksum computed on the way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rig {

struct FileRead {
  size_t size = 0;   // bytes read
  int error = 0;     // errno of a read that failed, else 0; less than asked and no error: the file ends there
  uint32_t crc = 0;  // CRC-32C of the bytes read
};

// Read `size` bytes from byte `offset` of the open file `fd` into `into`, in chunks small enough that the checksum finds
// them in the cache. Leaves the file's position alone; resumes after a signal.
[[nodiscard]] FileRead read_file(int fd, uint64_t offset, void* into, size_t size);

}  // namespace rig
