#include "file_read.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "crc32c.h"

namespace rig {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

}  // namespace

FileRead read_file(int fd, uint64_t offset, void* into, size_t size) {
  FileRead result;
  auto* const begin = static_cast<uint8_t*>(into);
  constexpr auto kMaxOffset = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  if (offset > kMaxOffset || size > kMaxOffset - offset) {
    result.error = EOVERFLOW;
    return result;
  }
  while (result.size < size) {
    iovec chunk{begin + result.size, std::min(kChunk, size - result.size)};
    const ssize_t count = preadv(fd, &chunk, 1, static_cast<off_t>(offset + result.size));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) result.error = errno;
    if (count <= 0) break;
    result.crc = crc32c(begin + result.size, static_cast<size_t>(count), result.crc);
    result.size += static_cast<size_t>(count);
  }
  return result;
}

}  // namespace rig
