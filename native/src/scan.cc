#include "scan.h"

#include <array>

namespace rig {
namespace {

constexpr const char* kTruncated = "the bytes end inside an object";
constexpr const char* kLonger = "an integer or a length is not in its shortest form";
constexpr const char* kKind = "an object of a kind that the format does not use";

uint64_t big_endian(const uint8_t* at, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value = (value << 8) | at[i];
  return value;
}

// The first byte of an object and what follows it: `width` bytes of an integer or of a length.
enum class Form : uint8_t { kNil, kFixed, kUnsigned, kSigned, kString, kArray, kOther };

struct Head {
  Form form = Form::kOther;
  uint8_t width = 0;  // bytes of the value or the length that follow
  uint8_t inline_length = 0;
};

Head head_of(uint8_t byte) {
  if (byte <= 0x7F || byte >= 0xE0) return {Form::kFixed};
  if (byte >= 0x90 && byte <= 0x9F) return {Form::kArray, 0, static_cast<uint8_t>(byte & 0x0FU)};
  if (byte >= 0xA0 && byte <= 0xBF) return {Form::kString, 0, static_cast<uint8_t>(byte & 0x1FU)};
  switch (byte) {
    case 0xC0: return {Form::kNil};
    case 0xCC: return {Form::kUnsigned, 1};
    case 0xCD: return {Form::kUnsigned, 2};
    case 0xCE: return {Form::kUnsigned, 4};
    case 0xCF: return {Form::kUnsigned, 8};
    case 0xD0: return {Form::kSigned, 1};
    case 0xD1: return {Form::kSigned, 2};
    case 0xD2: return {Form::kSigned, 4};
    case 0xD3: return {Form::kSigned, 8};
    case 0xD9: return {Form::kString, 1};
    case 0xDA: return {Form::kString, 2};
    case 0xDB: return {Form::kString, 4};
    case 0xDC: return {Form::kArray, 2};
    case 0xDD: return {Form::kArray, 4};
    default: return {Form::kOther};
  }
}

// What the next shorter form of an unsigned integer still holds.
uint64_t shorter_unsigned(uint8_t width) { return width == 1 ? 0x7FU : (uint64_t{1} << (4 * width)) - 1; }

// Why an unsigned integer of `width` bytes is refused, or null.
const char* unsigned_fault(uint64_t value, uint8_t width) {
  if (value <= shorter_unsigned(width)) return kLonger;
  return value > INT64_MAX ? "an integer past signed 64 bits" : nullptr;
}

// Why a signed integer of `width` bytes is refused, or null: negative and past what the next shorter form holds.
const char* signed_fault(uint64_t bits, uint8_t width) {
  const unsigned unused = 64U - 8U * width;
  const int64_t value = static_cast<int64_t>(bits << unused) >> unused;
  const int64_t shorter = width == 1 ? -32 : -(int64_t{1} << (4 * width - 1));
  return value >= shorter ? kLonger : nullptr;
}

// The longest length that a shorter form still holds.
uint64_t shorter_length(Form form, uint8_t width) {
  if (width == 4) return 0xFFFF;
  if (width == 2) return form == Form::kString ? 0xFF : 0x0F;
  return 0x1F;
}

}  // namespace

bool is_utf8(const uint8_t* at, size_t size) {
  const uint8_t* const end = at + size;
  while (at < end) {
    const uint8_t lead = *at++;
    if (lead < 0x80) continue;
    size_t more = 0;
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      more = 1;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      more = 2;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      more = 3;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return false;
    }
    if (static_cast<size_t>(end - at) < more) return false;
    for (; more > 0; --more, low = 0x80, high = 0xBF) {
      const uint8_t next = *at++;
      if (next < low || next > high) return false;
    }
  }
  return true;
}

ScanFault scan_msgpack(const uint8_t* data, size_t size, uint32_t max_depth) {
  std::array<uint64_t, kMaxScanDepth> left;  // objects still to come in each open array
  if (max_depth > kMaxScanDepth) max_depth = kMaxScanDepth;
  uint32_t depth = 0;
  size_t at = 0;
  do {
    const size_t start = at;
    if (at == size) return {start, kTruncated};
    const Head head = head_of(data[at++]);
    if (size - at < head.width) return {start, kTruncated};
    uint64_t value = head.inline_length;
    if (head.width != 0) {
      value = big_endian(data + at, head.width);
      at += head.width;
    }
    const char* fault = nullptr;
    bool opened = false;
    switch (head.form) {
      case Form::kNil:
      case Form::kFixed: break;
      case Form::kUnsigned: fault = unsigned_fault(value, head.width); break;
      case Form::kSigned: fault = signed_fault(value, head.width); break;
      case Form::kString:
        if (head.width != 0 && value <= shorter_length(head.form, head.width)) return {start, kLonger};
        if (value > size - at) return {start, "a string is longer than the bytes that are left"};
        if (!is_utf8(data + at, static_cast<size_t>(value))) return {start, "a string is not UTF-8"};
        at += static_cast<size_t>(value);
        break;
      case Form::kArray:
        if (head.width != 0 && value <= shorter_length(head.form, head.width)) return {start, kLonger};
        if (value > size - at) return {start, "an array has more elements than bytes are left"};
        if (depth == max_depth) return {start, "arrays are nested too deep"};
        left[depth++] = value;
        opened = true;
        break;
      case Form::kOther: fault = kKind; break;
    }
    if (fault != nullptr) return {start, fault};
    if (!opened && depth > 0) --left[depth - 1];
    while (depth > 0 && left[depth - 1] == 0) {
      --depth;
      if (depth > 0) --left[depth - 1];
    }
  } while (depth > 0);
  if (at != size) return {at, "bytes are left over after the object"};
  return {};
}

}  // namespace rig
