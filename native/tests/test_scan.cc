#include "scan.h"

#include <string>
#include <string_view>
#include <vector>

#include "check.h"

using namespace std::string_literals;
using namespace std::string_view_literals;

namespace {

rig::ScanFault scan(std::string_view bytes, uint32_t depth = 16) {
  return rig::scan_msgpack(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), depth);
}

bool good(std::string_view bytes) { return scan(bytes).reason == nullptr; }

// Refused at `position` for a reason that contains `part`.
bool refused(std::string_view bytes, size_t position, std::string_view part, uint32_t depth = 16) {
  const rig::ScanFault fault = scan(bytes, depth);
  return fault.reason != nullptr && fault.position == position && std::string_view(fault.reason).find(part) != std::string_view::npos;
}

}  // namespace

TEST(scan_takes_shortest_forms) {
  for (const std::string_view bytes :
       {"\x00"sv, "\x7f"sv, "\xe0"sv, "\xff"sv, "\xc0"sv, "\xcc\x80"sv, "\xcd\x01\x00"sv, "\xce\x00\x01\x00\x00"sv,
        "\xcf\x00\x00\x00\x01\x00\x00\x00\x00"sv, "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"sv, "\xd0\xdf"sv, "\xd0\x80"sv, "\xd1\xff\x7f"sv,
        "\xd1\x80\x00"sv, "\xd2\xff\xff\x7f\xff"sv, "\xd3\xff\xff\xff\xff\x7f\xff\xff\xff"sv,
        "\xd3\x80\x00\x00\x00\x00\x00\x00\x00"sv, "\xa0"sv, "\xa2hi"sv, "\x90"sv, "\x92\x01\x92\x90\x02"sv}) {
    CHECK(good(bytes));
  }
  CHECK(good("\xd9\x20" + std::string(32, 'a')));
  CHECK(good("\xda\x01\x00"s + std::string(256, 'a')));
  CHECK(good("\xdc\x00\x10"s + std::string(16, '\x01')));
  CHECK(good("\xdd\x00\x01\x00\x00"s + std::string(65536, '\x01')));
}

TEST(scan_refuses_longer_forms) {
  for (const std::string_view bytes :
       {"\xcc\x7f"sv, "\xcd\x00\xff"sv, "\xce\x00\x00\xff\xff"sv, "\xcf\x00\x00\x00\x00\xff\xff\xff\xff"sv, "\xd0\x05"sv, "\xd0\xe0"sv,
        "\xd1\xff\x80"sv, "\xd1\x00\x80"sv, "\xd2\xff\xff\x80\x00"sv, "\xd3\xff\xff\xff\xff\x80\x00\x00\x00"sv, "\xd9\x01x"sv,
        "\xda\x00\x01x"sv, "\xdb\x00\x00\x00\x01x"sv, "\xdc\x00\x01\x01"sv, "\xdd\x00\x00\x00\x01\x01"sv}) {
    CHECK(refused(bytes, 0, "shortest form"));
  }
}

TEST(scan_refuses_other_kinds) {
  for (const int byte : {0x80, 0x8F, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xDE,
                         0xDF}) {
    const std::string bytes = "\x91" + std::string(1, static_cast<char>(byte)) + std::string(16, '\0');
    CHECK(refused(bytes, 1, "does not use"));
  }
  CHECK(refused("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"sv, 0, "past signed 64 bits"));
}

TEST(scan_refuses_lengths_that_are_only_claimed) {
  CHECK(refused("\xdd\xff\xff\xff\xff\x01"sv, 0, "more elements"));
  CHECK(refused("\xdb\xff\xff\xff\xffx"sv, 0, "longer than"));
  CHECK(refused("\x93\x01\x02"sv, 0, "more elements"));
  CHECK(refused("\x92\x91\x01"sv, 3, "end inside"));
  CHECK(refused("\xcd\x01"sv, 0, "end inside"));
  CHECK(refused(""sv, 0, "end inside"));
  CHECK(refused("\x01\x02"sv, 1, "left over"));
}

TEST(scan_bounds_nesting) {
  CHECK(good(std::string(15, '\x91') + '\x90'));
  CHECK(refused(std::string(16, '\x91') + '\x90', 16, "too deep"));
  CHECK(refused(std::string(1 << 20, '\x91'), 16, "too deep"));
  CHECK(refused(std::string(1 << 20, '\x91'), rig::kMaxScanDepth, "too deep", 100000));
}

TEST(scan_checks_utf8) {
  for (const std::string_view text : {"\xa2\xc3\xa9"sv, "\xa3\xe2\x82\xac"sv, "\xa3\xed\x9f\xbf"sv, "\xa4\xf0\x9f\x98\x80"sv, "\xa4\xf4\x8f\xbf\xbf"sv}) {
    CHECK(good(text));
  }
  for (const std::string_view text : {"\xa1\x80"sv, "\xa2\xc0\x80"sv, "\xa2\xc1\xbf"sv, "\xa3\xe0\x80\x80"sv, "\xa3\xed\xa0\x80"sv, "\xa4\xf0\x80\x80\x80"sv,
                                      "\xa4\xf4\x90\x80\x80"sv, "\xa1\xf5"sv, "\xa1\xc3"sv, "\xa2\xc3x"sv, "\xa2\xe2\x82"sv}) {
    CHECK(refused(text, 0, "UTF-8"));
  }
}
