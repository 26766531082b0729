#include "crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace rig {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

constexpr uint32_t kPolynomial = 0x82F63B78U;  // reflected

using Table = std::array<uint32_t, 256>;

// Eight tables: table k takes a byte that k more bytes follow.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

uint64_t load64(const uint8_t* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint32_t portable(uint32_t crc, const uint8_t* at, size_t size) {
  for (; size >= 8; at += 8, size -= 8) {
    const uint64_t word = load64(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFFU];
  }
  for (; size > 0; ++at, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFFU];
  return crc;
}

#if defined(__x86_64__) || defined(__aarch64__)

// One instruction has a latency of three and starts every cycle, so three independent streams keep it busy. Their values
// are joined by tables that carry a value over the bytes of one stream.
constexpr size_t kLong = 8192;
constexpr size_t kShort = 256;

using Matrix = std::array<uint32_t, 32>;

constexpr uint32_t apply(const Matrix& matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (size_t bit = 0; vector != 0; vector >>= 1, ++bit) {
    if ((vector & 1U) != 0) sum ^= matrix[bit];
  }
  return sum;
}

// Tables that carry a value over `size` zero bytes, one per byte of the value; `size` is a power of two.
constexpr std::array<Table, 4> make_carry(size_t size) {
  Matrix matrix{};  // one zero bit
  matrix[0] = kPolynomial;
  for (size_t bit = 1; bit < 32; ++bit) matrix[bit] = 1U << (bit - 1);
  for (size_t bits = 1; bits < size * 8; bits *= 2) {
    Matrix square{};
    for (size_t bit = 0; bit < 32; ++bit) square[bit] = apply(matrix, matrix[bit]);
    matrix = square;
  }
  std::array<Table, 4> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t k = 0; k < 4; ++k) tables[k][byte] = apply(matrix, byte << (8 * k));
  }
  return tables;
}

constexpr std::array<Table, 4> kCarryLong = make_carry(kLong);
constexpr std::array<Table, 4> kCarryShort = make_carry(kShort);

uint32_t carry(const std::array<Table, 4>& tables, uint32_t crc) {
  return tables[0][crc & 0xFFU] ^ tables[1][(crc >> 8) & 0xFFU] ^ tables[2][(crc >> 16) & 0xFFU] ^ tables[3][crc >> 24];
}

#if defined(__x86_64__)
#define RIG_CRC_TARGET __attribute__((target("sse4.2")))
RIG_CRC_TARGET inline uint32_t step64(uint32_t crc, uint64_t word) { return static_cast<uint32_t>(_mm_crc32_u64(crc, word)); }
RIG_CRC_TARGET inline uint32_t step8(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
#define RIG_CRC_TARGET __attribute__((target("+crc")))
RIG_CRC_TARGET inline uint32_t step64(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
RIG_CRC_TARGET inline uint32_t step8(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

template <size_t kBlock>
RIG_CRC_TARGET inline uint32_t three_streams(uint32_t crc, const uint8_t* at, const std::array<Table, 4>& tables) {
  uint32_t second = 0;
  uint32_t third = 0;
  for (const uint8_t* end = at + kBlock; at < end; at += 8) {
    crc = step64(crc, load64(at));
    second = step64(second, load64(at + kBlock));
    third = step64(third, load64(at + 2 * kBlock));
  }
  return carry(tables, carry(tables, crc) ^ second) ^ third;
}

RIG_CRC_TARGET uint32_t by_instruction(uint32_t crc, const uint8_t* at, size_t size) {
  for (; size >= 3 * kLong; at += 3 * kLong, size -= 3 * kLong) crc = three_streams<kLong>(crc, at, kCarryLong);
  for (; size >= 3 * kShort; at += 3 * kShort, size -= 3 * kShort) crc = three_streams<kShort>(crc, at, kCarryShort);
  for (; size >= 8; at += 8, size -= 8) crc = step64(crc, load64(at));
  for (; size > 0; ++at, --size) crc = step8(crc, *at);
  return crc;
}

#else
bool has_instruction() { return false; }
uint32_t by_instruction(uint32_t crc, const uint8_t* at, size_t size) { return portable(crc, at, size); }
#endif

}  // namespace

uint32_t crc32c_portable(const void* data, size_t size, uint32_t seed) {
  return ~portable(~seed, static_cast<const uint8_t*>(data), size);
}

uint32_t crc32c(const void* data, size_t size, uint32_t seed) {
  static const bool instruction = has_instruction();
  const auto* at = static_cast<const uint8_t*>(data);
  return instruction ? ~by_instruction(~seed, at, size) : ~portable(~seed, at, size);
}

}  // namespace rig
