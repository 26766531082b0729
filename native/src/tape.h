// The flat form in which a run executes: records in order, with the data of each kind in an array of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "host_call.h"
#include "order.h"
#include "plan.h"

namespace rig {

enum class Op : uint16_t {
  calls,       // calls [a, a + b) of host code
  split,       // one launch of host code over several blocks
  launch,      // one launch of host code whose geometry is read now
  patch,       // patches [a, a + b)
  ref,         // turn an offset into an address
  copy,        // one copy by the host
  wait_write,  // the work that writes the ints
  wait_use,    // the work that uses the ints
  host_begin,  // a submit of the host: wait for the memory it names
  host_end,
  submit,  // a submit of another device
  move,
  loop,  // enter, or jump past the matching next
  next,  // one more trip, or fall through
  end
};

struct Record {
  Op op = Op::end;
  uint16_t part = 0;  // for messages
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t step = 0;  // index into the program's steps in order of description
};

struct Call {
  HostFunction function;
  const uint64_t* words;
  uint64_t begin;
  uint64_t end;
};

struct Split {
  HostFunction function;
  const uint64_t* words;
  uint64_t iterations;
  uint64_t blocks;
  int64_t cost_ns = 0;    // on one thread
  uint32_t measured = 0;  // times it was
  uint32_t age = 0;       // runs since
};

struct WordTerm {
  uint32_t word;  // of the ints
  int64_t factor;
};
// Words of terms that read none: the factor itself, and a known part of a sum that is past 64 bits.
constexpr uint32_t kConstant = UINT32_MAX;
constexpr uint32_t kPast = UINT32_MAX - 1;

// Stores bits | ((base + sum of terms) >> shift) at `at`.
struct Patch {
  uint8_t* at;
  uint64_t bits;
  int64_t base;
  uint32_t first, count;  // of terms
  uint8_t width;
  uint8_t shift;
};

// The memory that an end or a ref is of: fixed at load, or the run's input.
struct Place {
  Region* region = nullptr;  // null for an input
  uint32_t input = 0;
  uint32_t mapping = 0;    // of the input on the step's device
  rig_memory memory{};     // as the step's device sees it, for fixed memory
  uint64_t start = 0;      // of the slot within the region
  uint64_t length = 0;     // of the slot; of an input the least it has
};

// At `at` stands an offset into a place; it becomes an address.
struct RefFix {
  uint64_t* at;
  Place place;
};

// Before the first step: word at `at` becomes the mapped input's address plus an offset.
struct Bind {
  uint64_t* at;
  uint32_t mapping;
  uint64_t offset;
};

struct End {
  Place place;
  int64_t base = 0;
  uint32_t first = 0, count = 0;  // of terms, exact
};

struct CopyOp {
  End src, dst;
  uint64_t length = 0;
};

struct LaunchOp {
  rig_part part{};
  ValuePlan geometry[7];
  const uint64_t* words = nullptr;
};

// What a step names: fixed memory that other devices touch too, and inputs.
struct Names {
  std::vector<Named> memory;
  std::vector<std::pair<uint32_t, Use>> inputs;
};

struct HostStep {
  Names names;
};

struct SubmitOp {
  uint32_t device = 0;
  std::vector<rig_part> parts;
  const uint8_t* params = nullptr;
  uint64_t params_size = 0;
  bool constant = true;
  std::vector<std::pair<uint32_t, CopyOp>> copies;   // parts whose ends a run decides
  std::vector<std::pair<uint32_t, LaunchOp>> launches;  // parts whose geometry a run decides
  Names names;
  void* prepared = nullptr;
};

struct MoveOp {
  End src, dst;
  uint64_t length = 0;
};

struct LoopOp {
  ValuePlan trips;
  int64_t trip = -1;
  bool flag = false;
  bool wait_ints = false;   // other devices write the ints that trips reads
  bool wait_uses = false;   // other devices use the ints that the trip is stored in
  Place flag_place;
  uint64_t flag_at = 0;
  uint32_t past = 0;  // the record after the loop
  uint32_t depth = 0;
};

struct Tape {
  std::vector<Record> records;
  std::vector<Call> calls;
  std::vector<Split> splits;
  std::vector<LaunchOp> launches;
  std::vector<Patch> patches;
  std::vector<WordTerm> terms;
  std::vector<RefFix> refs;
  std::vector<Bind> binds;
  std::vector<CopyOp> copies;
  std::vector<HostStep> host_steps;
  std::vector<SubmitOp> submits;
  std::vector<MoveOp> moves;
  std::vector<LoopOp> loops;
};

}  // namespace rig
