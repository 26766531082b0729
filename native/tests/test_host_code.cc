// Flat images, made here byte by byte: what loads, what runs, and what is refused.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "crc32c.h"
#include "host_call.h"
#include "host_info.h"
#include "image.h"
#include "rig/driver.h"

namespace {

using Bytes = std::vector<uint8_t>;

template <typename T>
void put(Bytes& bytes, size_t at, T value) {
  if (bytes.size() < at + sizeof value) bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

struct Symbol {
  std::string name;
  uint64_t offset;
};

// The parts of an image; each test changes some.
struct Flat {
  std::string requires_arch = rig::host_info().instruction_set == "x86_64" ? "x86-64-v1" : "arm64";
  uint32_t version = 1, calling = 0;
  Bytes body;
  std::vector<Symbol> exports, imports;

  Bytes bytes() const {
    std::string strings = requires_arch;
    Bytes records;
    for (const auto* list : {&exports, &imports}) {
      for (const Symbol& s : *list) {
        put(records, records.size(), static_cast<uint32_t>(strings.size()));
        put(records, records.size(), static_cast<uint32_t>(s.name.size()));
        put(records, records.size(), s.offset);
        strings += s.name;
      }
    }
    Bytes out(64, 0);
    std::memcpy(out.data(), "\x93RIGIMG\n", 8);
    put(out, 8, version);
    put(out, 16, static_cast<uint64_t>(body.size()));
    put(out, 24, static_cast<uint32_t>(exports.size()));
    put(out, 28, static_cast<uint32_t>(imports.size()));
    put(out, 32, static_cast<uint32_t>(strings.size()));
    put(out, 36, uint32_t{0});
    put(out, 40, static_cast<uint32_t>(requires_arch.size()));
    put(out, 44, calling);
    out.insert(out.end(), records.begin(), records.end());
    out.insert(out.end(), strings.begin(), strings.end());
    out.resize((out.size() + 63) / 64 * 64);
    put(out, 12, static_cast<uint32_t>(out.size()));
    out.insert(out.end(), body.begin(), body.end());
    seal(out);
    return out;
  }

  static void seal(Bytes& out) {
    const auto crc = static_cast<uint32_t>(rig::crc32c(out.data() + 64, out.size() - 64, 0));
    put(out, 48, crc);
  }
};

constexpr uint64_t kSlot = 64;   // in the body: where the import's address goes
constexpr uint64_t kStore = 0;   // store words[1] at the address words[0]
constexpr uint64_t kJump = 32;   // jump to the import

// Two functions: "store", and "jump", which hands its arguments on to the imported function.
Flat two_functions(const std::string& import = "memset") {
  Flat flat;
  flat.body.assign(80, 0);
#if defined(__x86_64__)
  const uint8_t store[] = {0x48, 0x8b, 0x07, 0x48, 0x8b, 0x4f, 0x08, 0x48, 0x89, 0x08, 0xc3};
  std::memcpy(flat.body.data() + kStore, store, sizeof store);
  const uint8_t jump[] = {0xff, 0x25};
  std::memcpy(flat.body.data() + kJump, jump, sizeof jump);
  put(flat.body, kJump + 2, static_cast<uint32_t>(kSlot - kJump - 6));
#else
  for (size_t i = 0; const uint32_t code : {0xf9400003u, 0xf9400404u, 0xf9000064u, 0xd65f03c0u}) put(flat.body, kStore + 4 * i++, code);
  put(flat.body, kJump, static_cast<uint32_t>(0x58000010u | (kSlot - kJump) / 4 << 5));
  put(flat.body, kJump + 4, 0xd61f0200u);
#endif
  flat.exports = {{"jump", kJump}, {"store", kStore}};
  flat.imports = {{import, kSlot}};
  return flat;
}

std::string why_not(const Bytes& bytes) {
  // A copy of the very size, so that a read past the end is seen.
  const auto exact = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), exact.get());
  char why[RIG_WHY] = "";
  rig::HostCode* code = rig::HostCode::load(exact.get(), bytes.size(), why);
  if (code == nullptr) return why[0] == 0 ? "refused without a reason" : why;
  delete code;
  return "";
}

bool refused(const Bytes& bytes, const std::string& text) {
  const std::string why = why_not(bytes);
  if (!why.empty() && why.find(text) != std::string::npos) return true;
  std::fprintf(stderr, "not refused for \"%s\" but \"%s\"\n", text.c_str(), why.c_str());
  return false;
}

struct Loaded {
  explicit Loaded(const Bytes& bytes) : code(rig::HostCode::load(bytes.data(), bytes.size(), why)) {}
  ~Loaded() { delete code; }
  Loaded(const Loaded&) = delete;
  template <typename F = rig::HostFunction>
  F function(const char* name) {
    uint64_t address = 0;
    return code && code->resolve(name, &address, why) ? reinterpret_cast<F>(address) : nullptr;
  }
  char why[RIG_WHY] = "";
  rig::HostCode* code;
};

// The protection of the page at an address as the system shows it, empty if nothing is mapped there.
std::string protection(uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long begin = 0, end = 0;
    char flags[8] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, flags) == 3 && begin <= address && address < end) return flags;
  }
  return "";
}

#if defined(__x86_64__)
// Calls an import of one float or double that gives a half float or a bfloat16 as its bits.
template <typename T>
uint16_t narrow(const char* import, T value) {
  Loaded image(two_functions(import).bytes());
  const auto f = image.function<_Float16 (*)(T)>("jump");
  const _Float16 half = f(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
#endif

}  // namespace

TEST(host_code_flat_image_runs) {
  Loaded image(two_functions().bytes());
  CHECK(image.code != nullptr);
  uint64_t target = 0;
  const uint64_t words[] = {reinterpret_cast<uint64_t>(&target), 0x1234567890abcdef};
  image.function("store")(words, 0, 1);
  CHECK(target == 0x1234567890abcdef);
  uint64_t filled[3] = {1, 1, 1};
  image.function("jump")(filled, 0xAB, 16);  // memset
  CHECK(filled[0] == 0xababababababababULL && filled[1] == 0xababababababababULL && filled[2] == 1);
}

TEST(host_code_is_never_writable_and_executable_and_goes_away) {
  uint64_t at = 0;
  {
    Loaded image(two_functions().bytes());
    at = reinterpret_cast<uint64_t>(image.function("store"));
    CHECK(protection(at) == "r-xp");
  }
  CHECK(protection(at).find('x') == std::string::npos);
}

TEST(host_code_names_what_it_does_not_have) {
  Loaded image(two_functions().bytes());
  for (const char* name : {"", "s", "stor", "store2", "memset", "zzz", "jump\x01"}) {
    CHECK(image.function(name) == nullptr);
    CHECK(std::string(image.why) == "the image has no function named " + std::string(name));
  }
}

TEST(host_code_many_exports_are_found) {
  Flat flat = two_functions();
  flat.exports.clear();
  for (int i = 0; i < 1000; ++i) flat.exports.push_back({"f" + std::to_string(i), kStore});
  std::sort(flat.exports.begin(), flat.exports.end(), [](const Symbol& a, const Symbol& b) { return a.name < b.name; });
  Loaded image(flat.bytes());
  for (int i = 0; i < 1000; ++i) CHECK(image.function(("f" + std::to_string(i)).c_str()) != nullptr);
  CHECK(image.function("f1000") == nullptr);
}

TEST(host_code_other_bytes_are_no_image) {
  CHECK(refused({}, "image of 0 bytes that is neither"));
  CHECK(refused({1, 2, 3}, "image of 3 bytes that is neither"));
  CHECK(refused(Bytes(1000, 0), "neither a flat image nor a shared library"));
  Bytes elf(200, 0);
  std::memcpy(elf.data(), "\x7f" "ELF", 4);
  CHECK(refused(elf, "shared library that does not load"));
}

TEST(host_code_needs_its_arch_and_calling_convention) {
  Flat flat = two_functions();
  CHECK(why_not(flat.bytes()).empty());
  flat.requires_arch = rig::host_info().instruction_set == "x86_64" ? "arm64" : "x86-64-v1";
  CHECK(refused(flat.bytes(), "needs " + flat.requires_arch + ", this machine is " + rig::host_info().arch));
  flat.requires_arch = "x86-64-v9";
  CHECK(refused(flat.bytes(), "needs x86-64-v9"));
  flat.requires_arch = "";
  CHECK(refused(flat.bytes(), "needs "));
  flat = two_functions();
  flat.calling = 1;
  CHECK(refused(flat.bytes(), "Windows calling convention"));
  flat.calling = 2;
  CHECK(refused(flat.bytes(), "calling convention"));
  flat = two_functions();
  flat.version = 2;
  CHECK(refused(flat.bytes(), "version 2, this is version 1"));
}

TEST(host_code_header_fields_hold_together) {
  const Bytes good = two_functions().bytes();
  const auto with = [&](size_t at, auto value, bool sealed = true) {
    Bytes bytes = good;
    put(bytes, at, value);
    if (sealed && at >= 64) Flat::seal(bytes);
    return bytes;
  };
  const uint32_t body = 0x1000;
  uint32_t offset = 0;
  std::memcpy(&offset, good.data() + 12, 4);
  CHECK(refused(with(0, uint8_t{0x92}), "neither"));
  for (const uint32_t v : {0u, 1u, 63u, offset - 64, offset + 64, offset - 1, 0xFFFFFFC0u}) CHECK(refused(with(12, v), "other sizes"));
  for (const uint64_t v : {uint64_t{0}, uint64_t{79}, uint64_t{81}, uint64_t{body}, ~uint64_t{0}}) CHECK(refused(with(16, v), "other sizes"));
  for (const size_t count : {24u, 28u, 32u}) {
    for (const uint32_t v : {0x100u, 0xFFFFFFFFu}) CHECK(refused(with(count, v), "other sizes"));
  }
  for (const uint32_t v : {100u, 0xFFFFFFFFu}) {
    CHECK(refused(with(36, v), "outside its strings"));
    CHECK(refused(with(40, v), "outside its strings"));
  }
  CHECK(refused(with(48, uint32_t{0}), "wrong checksum"));
  CHECK(refused(with(offset - 1, uint8_t{1}), "more than zeros before its body"));
  for (const size_t at : {52u, 56u, 60u, 63u}) CHECK(refused(with(at, uint8_t{1}), "last 12 bytes"));
}

// The size of the strings may take in zeros that follow them, which changes nothing; every other bit counts.
TEST(host_code_every_changed_bit_is_refused) {
  const Bytes good = two_functions().bytes();
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bytes = good;
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ 1 << bit);
      const bool grows = at == 32 && bytes[at] > good[at];
      CHECK(grows || !why_not(bytes).empty());
    }
  }
}

TEST(host_code_every_cut_is_refused) {
  const Bytes good = two_functions().bytes();
  for (size_t n = 0; n < good.size(); ++n) CHECK(!why_not(Bytes(good.begin(), good.begin() + static_cast<long>(n))).empty());
  Bytes more = good;
  more.push_back(0);
  CHECK(refused(more, "other sizes"));
}

TEST(host_code_records_hold_together) {
  const Bytes good = two_functions().bytes();  // exports at 64 and 80, the import at 96
  const auto with = [&](size_t at, auto value) {
    Bytes bytes = good;
    put(bytes, at, value);
    Flat::seal(bytes);
    return bytes;
  };
  CHECK(refused(with(64, uint32_t{1000}), "export 0 is out of place"));
  CHECK(refused(with(64, ~uint32_t{0}), "export 0 is out of place"));
  CHECK(refused(with(68, ~uint32_t{0}), "export 0 is out of place"));
  CHECK(refused(with(84, uint32_t{1000}), "export 1 is out of place"));
  CHECK(refused(with(88, uint64_t{80}), "export 1 is out of place"));
  CHECK(refused(with(72, ~uint64_t{0}), "export 0 is out of place"));
  CHECK(why_not(with(72, uint64_t{79})).empty());
  CHECK(refused(with(96, uint32_t{1000}), "import 0 is out of place"));
  CHECK(refused(with(100, ~uint32_t{0}), "import 0 is out of place"));
  CHECK(refused(with(104, uint64_t{73}), "import 0 is out of place"));
  CHECK(refused(with(104, ~uint64_t{0} - 3), "import 0 is out of place"));
  CHECK(why_not(with(104, uint64_t{72})).empty());
  Flat flat = two_functions();
  std::swap(flat.exports[0], flat.exports[1]);
  CHECK(refused(flat.bytes(), "export 1 is out of place"));
  flat.exports = {{"same", 0}, {"same", 0}};
  CHECK(refused(flat.bytes(), "export 1 is out of place"));
}

TEST(host_code_imports_are_the_list_that_is_given) {
  for (const char* name : {"truncf", "trunc", "floorf", "floor", "ceilf", "ceil", "sqrtf", "sqrt", "fmaf", "fma", "fmodf", "fmod",
                           "memcpy", "memset", "memmove", "__truncsfbf2", "__truncdfbf2"}) {
    CHECK(why_not(two_functions(name).bytes()).empty());
  }
#if defined(__x86_64__)
  for (const char* name : {"__truncsfhf2", "__extendhfsf2", "__truncdfhf2"}) CHECK(why_not(two_functions(name).bytes()).empty());
#endif
  for (const char* name : {"system", "malloc", "truncl", "", "truncf2"}) {
    CHECK(refused(two_functions(name).bytes(), "imports " + std::string(name) + ", which is not among"));
  }
  Loaded image(two_functions("fma").bytes());
  CHECK(image.function<double (*)(double, double, double)>("jump")(2, 3, 4) == 10);
  Loaded floats(two_functions("fmodf").bytes());
  CHECK(floats.function<float (*)(float, float)>("jump")(7.5f, 2) == 1.5f);
}

#if defined(__x86_64__)
TEST(host_code_narrow_floats_round_to_nearest_even) {
  CHECK(narrow("__truncsfhf2", 1.0f) == 0x3C00);
  CHECK(narrow("__truncdfhf2", -2.0) == 0xC000);
  CHECK(narrow("__truncsfhf2", 1e6f) == 0x7C00);
  const auto brain = [](uint32_t bits) { return narrow("__truncsfbf2", std::bit_cast<float>(bits)); };
  CHECK(brain(0x3F800000) == 0x3F80);
  CHECK(brain(0x3F808000) == 0x3F80);  // a tie goes to the even one
  CHECK(brain(0x3F818000) == 0x3F82);
  CHECK(brain(0x3F808001) == 0x3F81);
  CHECK(brain(0x3F807FFF) == 0x3F80);
  CHECK(brain(0xBF818000) == 0xBF82);
  CHECK(brain(0x7F7FFFFF) == 0x7F80);  // past the greatest
  CHECK(brain(0x7F800000) == 0x7F80);
  CHECK(brain(0xFF800000) == 0xFF80);
  CHECK(brain(0x00000001) == 0x0000);
  CHECK(brain(0x80000000) == 0x8000);
  CHECK((brain(0x7FC00000) & 0x7FFF) > 0x7F80);
  CHECK((brain(0x7F800001) & 0x7FFF) > 0x7F80);  // stays a NaN though its low bits go
  const double tie = 1.00390625;                  // 0x3F808000 as a float
  const double above = std::nextafter(tie, 2.0), below = std::nextafter(tie, 0.0);
  CHECK(narrow("__truncdfbf2", tie) == 0x3F80);
  CHECK(narrow("__truncdfbf2", above) == 0x3F81);  // as a float it would be a tie
  CHECK(narrow("__truncdfbf2", below) == 0x3F80);
  const double high = 1.01171875;  // 0x3F818000
  CHECK(narrow("__truncdfbf2", std::nextafter(high, 0.0)) == 0x3F81);
  CHECK(narrow("__truncdfbf2", -std::nextafter(high, 0.0)) == 0xBF81);
  CHECK(narrow("__truncdfbf2", 1e300) == 0x7F80);
  CHECK(narrow("__truncdfbf2", -1e-300) == 0x8000);
  CHECK(narrow("__truncdfbf2", std::numeric_limits<double>::infinity()) == 0x7F80);
  CHECK((narrow("__truncdfbf2", std::numeric_limits<double>::quiet_NaN()) & 0x7FFF) > 0x7F80);
}
#endif
