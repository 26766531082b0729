// A program's bytes, read straight into the steps of a plan: the way of a load that needs no description.
//
// Reading decodes and holds the program against every rule that needs no device, in one go. It never says what is wrong:
// bytes that it does not take are decoded and checked as a description, which finds the words, or finds nothing wrong.
// So it may take fewer programs than the description's check passes, and never one more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"
#include "plan.h"

namespace rig {

struct Packed {
  struct Blob {
    const uint8_t* bytes = nullptr;
    uint64_t size = 0;
  };
  struct Memory {
    uint32_t device = 0;
    uint64_t nbytes = 0;
    Blob init;
    uint32_t copies = 1;
    uint32_t kind = 0;
  };
  struct Code {
    uint32_t device = 0;
    Blob binary;
  };

  std::vector<std::string_view> devices;  // the arch that each one's code is for
  std::vector<Memory> memory;
  std::vector<Code> images;
  std::vector<InputPlan> inputs;
  uint64_t ints = 0;
  std::vector<StepPlan> steps;           // functions are entries: `b` is an index into names
  std::vector<std::string_view> names;
  std::vector<uint32_t> host_code;       // devices whose images fills call: their code must be the host's

  bool built = false;                    // its steps are used up

  // The memory that a run may write, one flag each.
  [[nodiscard]] std::vector<bool> written() const;

  // Turn the entries of the steps into functions of the loaded images.
  [[nodiscard]] bool resolve(const std::vector<Ref<Image>>& loaded, Error& err);
};

// Read the `size` bytes at `data`, which must stay as they are while `out` is in use. False says nothing about them.
[[nodiscard]] bool read_packed(const uint8_t* data, size_t size, Packed& out);

// The rules of one submit and one move, whose indices are known to be good; in packed_rules.cc.
[[nodiscard]] bool keeps_rules(const Packed& program, const StepPlan& step);

// The most loops inside each other.
constexpr uint32_t kMaxLoops = 64;

}  // namespace rig
