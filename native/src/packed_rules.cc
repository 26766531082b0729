// The rules of submits and moves, for programs that are loaded without a description. src/rig/program/rules_*.py has
// the same rules with words for each; this says only whether all are kept.
#include <algorithm>
#include <cstring>

#include "packed.h"

namespace rig {
namespace {

__extension__ typedef __int128 Wide;

bool is_word(Wide n) { return n >= INT64_MIN && n <= INT64_MAX; }

// The bytes of a slot's buffer; of an input a program says only the least, so that every byte may be there.
uint64_t length_of(const SlotPlan& slot) { return slot.kind == SlotPlan::input ? uint64_t{INT64_MAX} : slot.length; }

// The offset of an end that is known at load, or a negative number if its step reads it from the ints.
constexpr Wide kLater = -1;

bool offset_of(const std::vector<TermPlan>& terms, Wide& out) {
  out = 0;
  for (const TermPlan& t : terms) {
    if (t.value.kind > ValuePlan::word) return false;
    if (t.value.kind == ValuePlan::word) out = kLater;
  }
  if (out == kLater) return true;
  for (const TermPlan& t : terms) {
    const Wide product = Wide{t.value.a} * t.factor;
    out += product;
    if (!is_word(product) || !is_word(out)) return false;
  }
  return out >= 0;
}

bool overlap(const SlotPlan& src, Wide src_at, const SlotPlan& dst, Wide dst_at, Wide length) {
  if (src_at == kLater || dst_at == kLater || src.kind != dst.kind || src.index != dst.index) return false;
  if (src.kind == SlotPlan::memory) {
    src_at += src.offset;
    dst_at += dst.offset;
  }
  const Wide apart = src_at < dst_at ? dst_at - src_at : src_at - dst_at;
  return apart < length;
}

bool ends_are_good(const std::vector<SlotPlan>& slots, const EndPlan& src, const EndPlan& dst, Wide length) {
  Wide from = 0, to = 0;
  if (!offset_of(src.offset, from) || !offset_of(dst.offset, to)) return false;
  const SlotPlan &source = slots[src.slot], &target = slots[dst.slot];
  if (from != kLater && from + length > length_of(source)) return false;
  if (to != kLater && to + length > length_of(target)) return false;
  return !overlap(source, from, target, to, length);
}

class SubmitRules {
 public:
  SubmitRules(const Packed& program, const StepPlan& step) : p_(program), step_(step), uses_(step.slots.size(), 0) {
    for (const FixedPlan& f : step.fixed) {
      if (f.view.offset == 0 && f.view.length == program.memory[f.view.index].nbytes) whole_.push_back(f.view.index);
    }
    std::sort(whole_.begin(), whole_.end());
  }

  bool kept() {
    for (const PartPlan& part : step_.parts) {
      if (part.kind == RIG_COPY ? !copy(part) : !call(part)) return false;
    }
    return std::all_of(uses_.begin(), uses_.end(), [](uint8_t use) { return use == kOrdered || use == kUnordered; });
  }

 private:
  static constexpr uint8_t kOrdered = 1, kUnordered = 2;

  bool copy(const PartPlan& part) {
    if (part.src.slot >= uses_.size() || part.dst.slot >= uses_.size()) return false;
    uses_[part.src.slot] |= kOrdered;
    uses_[part.dst.slot] |= kOrdered;
    return ends_are_good(step_.slots, part.src, part.dst, part.length);
  }

  bool call(const PartPlan& part) {
    if (part.kind == RIG_LAUNCH) {
      if (p_.images[static_cast<size_t>(part.callee.a)].device != step_.device) return false;
      for (const ValuePlan& v : part.geometry) {
        if (!value(v)) return false;
      }
    }
    if (part.params.size % 4 != 0 || !holes(part.params)) return false;
    return refs(part);
  }

  // An address stands only where the step holds the whole memory, and as the step's device sees it.
  bool value(const ValuePlan& v) const {
    if (v.kind != ValuePlan::address) return true;
    return v.b == step_.device && std::binary_search(whole_.begin(), whole_.end(), static_cast<uint32_t>(v.a));
  }

  bool holes(const DataPlan& params) {
    spans_.clear();
    for (const HolePlan& h : params.holes) {
      const auto at = static_cast<uint64_t>(h.at), width = static_cast<uint64_t>(h.width) / 8;
      if (at > params.size || width > params.size - at) return false;
      spans_.push_back({at, at + width});
      for (const TermPlan& t : h.terms) {
        if (!value(t.value)) return false;
      }
    }
    return apart();
  }

  bool refs(const PartPlan& part) {
    spans_.clear();
    for (const RefPlan& r : part.refs) {
      if (r.slot >= uses_.size() || r.at > part.params.size || part.params.size - r.at < 8) return false;
      uses_[r.slot] |= r.use == Use::unordered ? kUnordered : kOrdered;
      spans_.push_back({r.at, r.at + 8});
      uint64_t word = 0;
      if (known_word(part.params, r.at, word) && word > length_of(step_.slots[r.slot])) return false;
    }
    return apart();
  }

  // Whether no two of the spans share a byte.
  bool apart() {
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < spans_.size(); ++i) {
      if (spans_[i].begin < spans_[i - 1].end) return false;
    }
    return true;
  }

  // The word that the 8 bytes at `at` hold with their holes filled; false if only load or a run knows it.
  static bool known_word(const DataPlan& params, uint64_t at, uint64_t& word) {
    memcpy(&word, params.bytes + at, 8);
    for (const HolePlan& h : params.holes) {
      const auto from = static_cast<uint64_t>(h.at);
      if (from + static_cast<uint64_t>(h.width) / 8 <= at || from >= at + 8) continue;
      auto sum = static_cast<uint64_t>(h.add);
      for (const TermPlan& t : h.terms) {
        if (t.value.kind != ValuePlan::fixed) return false;
        sum += static_cast<uint64_t>(t.value.a) * static_cast<uint64_t>(t.factor);
      }
      const uint64_t filled = h.width == 32 ? sum >> h.shift & UINT32_MAX : sum >> h.shift;
      word |= from >= at ? filled << 8 * (from - at) : filled >> 8 * (at - from);
    }
    return true;
  }

  struct Span {
    uint64_t begin, end;
  };

  const Packed& p_;
  const StepPlan& step_;
  std::vector<uint8_t> uses_;     // of each slot, as bits
  std::vector<uint32_t> whole_;   // memory that is fixed whole
  std::vector<Span> spans_;       // scratch
};

}  // namespace

bool keeps_rules(const Packed& program, const StepPlan& step) {
  if (step.kind == StepPlan::move) return ends_are_good(step.slots, step.src, step.dst, step.length);
  return SubmitRules(program, step).kept();
}

}  // namespace rig
