// A checked description as the core takes it: everything resolved but what a run alone knows. Filled once per load by
// whoever read the description; the bytes it points to live until the program is built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "image.h"
#include "region.h"

namespace rig {

struct ValuePlan {
  // The integer; word `a` of the ints; memory `a` as device `b` sees it; function `b` of image `a`, until it is resolved.
  enum Kind : uint8_t { fixed, word, address, entry };
  Kind kind = fixed;
  int64_t a = 0;
  int64_t b = 0;
};

struct TermPlan {
  ValuePlan value;
  int64_t factor = 1;
};

struct HolePlan {
  int64_t at = 0;
  int width = 64;
  int64_t add = 0;
  int shift = 0;
  std::vector<TermPlan> terms;
};

struct DataPlan {
  const uint8_t* bytes = nullptr;
  uint64_t size = 0;
  std::vector<HolePlan> holes;
};

struct RefPlan {
  uint32_t slot = 0;
  uint64_t at = 0;
  Use use = Use::read;
};

struct EndPlan {
  uint32_t slot = 0;
  std::vector<TermPlan> offset;
};

struct PartPlan {
  uint32_t kind = RIG_LAUNCH;
  Function function;  // of a launch or a fill
  ValuePlan callee;   // what it is resolved from, where a reader leaves that for later
  DataPlan params;
  std::vector<RefPlan> refs;
  ValuePlan geometry[7];  // groups, threads, shared
  EndPlan src, dst;
  uint64_t length = 0;
};

struct SlotPlan {
  enum Kind : uint8_t { memory, input, ints };
  Kind kind = memory;
  uint32_t index = 0;  // of the memory or the input
  uint64_t offset = 0;
  uint64_t length = 0;  // of the view; for an input its least number of bytes
};

struct FixedPlan {
  SlotPlan view;
  bool writes = false;
};

struct StepPlan {
  enum Kind : uint8_t { submit, move, loop };
  Kind kind = submit;
  uint32_t device = 0;
  std::vector<PartPlan> parts;
  std::vector<SlotPlan> slots;  // of a submit; of a move source and destination; of a loop its flag
  std::vector<FixedPlan> fixed;
  EndPlan src, dst;  // of a move
  uint64_t length = 0;
  ValuePlan trips;  // of a loop
  int64_t trip = -1;
  int64_t flag_at = 0;
  std::vector<StepPlan> body;
};

struct MemoryPlan {
  Ref<Region> copies[2];
  bool two = false;
  bool shared = false;  // work outside the program may touch it too
};

struct InputPlan {
  uint32_t device = 0;
  uint64_t nbytes = 0;
};

struct ProgramPlan {
  std::vector<Ref<Device>> devices;
  std::vector<MemoryPlan> memory;
  std::vector<Ref<Image>> images;  // kept alive
  std::vector<InputPlan> inputs;
  uint64_t ints = 0;
  Ref<Region> int_copies[2];
  std::vector<StepPlan> steps;
};

}  // namespace rig
