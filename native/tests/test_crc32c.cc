#include "crc32c.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "file_read.h"

namespace {

std::vector<uint8_t> noise(size_t size) {
  std::vector<uint8_t> bytes(size);
  uint32_t state = 12345;
  for (uint8_t& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bytes;
}

// An anonymous temporary file that holds `bytes`.
int file_of(const std::vector<uint8_t>& bytes) {
  char name[] = "/tmp/rig-test-XXXXXX";
  const int fd = mkstemp(name);
  if (fd < 0) return fd;
  unlink(name);
  if (write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return -1;
  return fd;
}

}  // namespace

TEST(crc32c_known_values) {
  CHECK(rig::crc32c("", 0) == 0);
  CHECK(rig::crc32c("123456789", 9) == 0xE3069283U);
  const std::vector<uint8_t> zeros(32, 0);
  CHECK(rig::crc32c(zeros.data(), 32) == 0x8A9136AAU);
  const std::vector<uint8_t> ones(32, 0xFF);
  CHECK(rig::crc32c(ones.data(), 32) == 0x62A8AB43U);
  CHECK(rig::crc32c_portable("123456789", 9) == 0xE3069283U);
}

TEST(crc32c_equals_the_tables_at_every_size_and_start) {
  const std::vector<uint8_t> bytes = noise(3 * 8192 * 2 + 3 * 256 + 100);
  for (size_t start = 0; start < 9; ++start) {
    for (const size_t size : {0U, 1U, 7U, 8U, 9U, 255U, 767U, 768U, 769U, 1600U, 24575U, 24576U, 24577U, 25400U, 49900U}) {
      CHECK(rig::crc32c(bytes.data() + start, size) == rig::crc32c_portable(bytes.data() + start, size));
    }
  }
}

TEST(crc32c_continues_from_a_seed) {
  const std::vector<uint8_t> bytes = noise(60000);
  const uint32_t whole = rig::crc32c(bytes.data(), bytes.size());
  for (const size_t cut : {0U, 1U, 100U, 24576U, 59999U, 60000U}) {
    CHECK(rig::crc32c(bytes.data() + cut, bytes.size() - cut, rig::crc32c(bytes.data(), cut)) == whole);
  }
}

TEST(file_read_reads_in_place_and_sums) {
  const std::vector<uint8_t> bytes = noise((size_t{5} << 19) + 17);
  const int fd = file_of(bytes);
  CHECK(fd >= 0);
  std::vector<uint8_t> into(bytes.size() - 5);
  const rig::FileRead all = rig::read_file(fd, 5, into.data(), into.size());
  CHECK(all.error == 0);
  CHECK(all.size == into.size());
  CHECK(std::memcmp(into.data(), bytes.data() + 5, into.size()) == 0);
  CHECK(all.crc == rig::crc32c(into.data(), into.size()));
  const rig::FileRead cut = rig::read_file(fd, 6, into.data(), into.size());
  CHECK(cut.error == 0);
  CHECK(cut.size == into.size() - 1);
  const rig::FileRead past = rig::read_file(fd, UINT64_MAX - 4, into.data(), 16);
  CHECK(past.error == EOVERFLOW);
  close(fd);
  const rig::FileRead closed = rig::read_file(-1, 0, into.data(), 1);
  CHECK(closed.error == EBADF);
  CHECK(closed.size == 0);
}
