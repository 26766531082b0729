// From a plan to tapes: what load does once, so that a run only executes.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "program.h"

namespace rig {

inline bool reads_word(const std::vector<TermPlan>& terms) {
  return std::any_of(terms.begin(), terms.end(), [](const TermPlan& t) { return t.value.kind == ValuePlan::word; });
}

inline bool varies(const HolePlan& hole) { return reads_word(hole.terms); }

inline bool part_reads_ints(const PartPlan& p) {
  for (const HolePlan& h : p.params.holes) {
    if (varies(h)) return true;
  }
  for (const ValuePlan& v : p.geometry) {
    if (v.kind == ValuePlan::word) return true;
  }
  return reads_word(p.src.offset) || reads_word(p.dst.offset);
}

inline uint64_t load_word(const uint8_t* at, int width) {
  uint64_t v = 0;
  memcpy(&v, at, static_cast<size_t>(width) / 8);
  return v;
}

class Builder {
 public:
  Builder(Program& program, Error& err) : p_(program), plan_(program.plan_), err_(err) {}

  bool build();

 private:
  void survey(const std::vector<StepPlan>& steps);
  void touch(const SlotPlan& slot, uint32_t device, bool writes);
  void name_steps(const std::vector<StepPlan>& steps, const std::string& prefix, int64_t top);
  bool emit(const std::vector<StepPlan>& steps, uint32_t depth);
  bool emit_submit(const StepPlan& s);
  bool emit_move(const StepPlan& s);
  bool emit_loop(const StepPlan& s, uint32_t depth);
  bool emit_host_part(const PartPlan& part, uint32_t index, uint8_t* block, uint64_t offset, const StepPlan& s);
  bool emit_device_part(const PartPlan& part, uint32_t index, uint8_t* block, uint64_t offset, const StepPlan& s, SubmitOp& op);
  bool fill_params(const PartPlan& part, uint32_t index, uint8_t* at, const StepPlan& s, bool& changes);
  bool fill_ref(const RefPlan& ref, const PartPlan& part, uint32_t index, uint8_t* at, const StepPlan& s, bool& changes);
  bool make_place(const SlotPlan& slot, uint32_t device, Place& place);
  bool make_end(const EndPlan& end, const StepPlan& s, uint32_t device, End& out);
  void make_offset(const std::vector<TermPlan>& terms, End& out);
  uint64_t leaf_value(const ValuePlan& value);
  Names names_of(const StepPlan& s);
  void add_calls(const Call& call, uint32_t part);
  uint32_t mapping(uint32_t input, uint32_t device);
  Region* region_of(const SlotPlan& slot) const;
  bool fail(Code code, uint32_t part, const std::string& text);
  bool refused_part(const rig_part& part, uint32_t index, const StepPlan& s);
  Record& record(Op op, uint32_t a = 0, uint32_t b = 0, uint32_t part = 0) {
    t_->records.push_back({op, static_cast<uint16_t>(std::min<uint32_t>(part, UINT16_MAX)), a, b, step_});
    return t_->records.back();
  }
  template <typename V>
  static uint32_t index(const V& v) {
    return static_cast<uint32_t>(v.size());
  }

  Program& p_;
  ProgramPlan& plan_;
  Error& err_;
  Tape* t_ = nullptr;
  int copy_ = 0;
  uint32_t step_ = 0;  // the current step among all, in order
  std::vector<std::set<uint32_t>> memory_devices_;  // which devices' work touches each memory
  std::set<uint32_t> ints_devices_;
  bool ints_written_ = false;  // by another device
  bool ints_used_ = false;
  bool two_ = false;  // a step names memory of two copies or the ints
  size_t restore_at_ = 0;  // where the current part's patches start
};

}  // namespace rig
