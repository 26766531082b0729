// The parts of a submit: their parameter blocks with the holes that are known filled, and what a run must still do.
#include "builder.h"

namespace rig {
namespace {

constexpr uint32_t kSegment = 64;  // calls between two looks at the clock

}  // namespace

uint32_t Builder::mapping(uint32_t input, uint32_t device) {
  for (size_t i = 0; i < p_.mappings_.size(); ++i) {
    if (p_.mappings_[i].input == input && p_.mappings_[i].device == device) return static_cast<uint32_t>(i);
  }
  p_.mappings_.push_back({input, device});
  return static_cast<uint32_t>(p_.mappings_.size() - 1);
}

Region* Builder::region_of(const SlotPlan& slot) const {
  if (slot.kind == SlotPlan::ints) return plan_.int_copies[copy_].get();
  return plan_.memory[slot.index].copies[copy_].get();
}

bool Builder::make_place(const SlotPlan& slot, uint32_t device, Place& place) {
  place.length = slot.length;
  if (slot.kind == SlotPlan::input) {
    place.input = slot.index;
    place.mapping = mapping(slot.index, device);
    return true;
  }
  place.region = region_of(slot);
  place.start = slot.kind == SlotPlan::ints ? 0 : slot.offset;
  Error why;
  if (!place.region->map(plan_.devices[device], place.memory, why)) return fail(why.code, UINT32_MAX, why.message);
  return true;
}

void Builder::make_offset(const std::vector<TermPlan>& terms, End& out) {
  out.first = index(t_->terms);
  for (const TermPlan& t : terms) {
    int64_t product = 0, sum = 0;
    if (t.value.kind == ValuePlan::word) {
      t_->terms.push_back({static_cast<uint32_t>(t.value.a), t.factor});
    } else if (__builtin_mul_overflow(t.value.a, t.factor, &product)) {
      t_->terms.push_back({kPast, 0});
    } else if (index(t_->terms) != out.first) {
      // The sum is exact at each term, so that what follows a word is added after it.
      t_->terms.push_back({kConstant, product});
    } else if (__builtin_add_overflow(out.base, product, &sum)) {
      t_->terms.push_back({kPast, 0});
    } else {
      out.base = sum;
    }
  }
  out.count = index(t_->terms) - out.first;
}

bool Builder::make_end(const EndPlan& end, const StepPlan& s, uint32_t device, End& out) {
  if (!make_place(s.slots[end.slot], device, out.place)) return false;
  make_offset(end.offset, out);
  return true;
}

uint64_t Builder::leaf_value(const ValuePlan& value) {
  if (value.kind == ValuePlan::fixed) return static_cast<uint64_t>(value.a);
  rig_memory m{};
  Error unused;  // load borrowed every memory that a step fixes before
  plan_.memory[static_cast<size_t>(value.a)].copies[copy_]->map(plan_.devices[static_cast<size_t>(value.b)], m, unused);
  return m.address;
}

bool Builder::fill_params(const PartPlan& part, uint32_t index_of_part, uint8_t* at, const StepPlan& s, bool& changes) {
  if (part.params.size != 0) memcpy(at, part.params.bytes, part.params.size);
  for (const HolePlan& h : part.params.holes) {
    uint8_t* word = at + h.at;
    uint64_t sum = static_cast<uint64_t>(h.add);
    for (const TermPlan& t : h.terms) {
      if (t.value.kind != ValuePlan::word) sum += leaf_value(t.value) * static_cast<uint64_t>(t.factor);
    }
    const uint64_t bits = load_word(word, h.width);
    if (!varies(h)) {
      uint64_t v = sum >> h.shift;
      if (h.width == 32) v &= UINT32_MAX;
      if ((v & bits) != 0) {
        return fail(Code::invalid, index_of_part, "the value " + std::to_string(v) + " of the hole at byte " + std::to_string(h.at) +
                                              " of its params meets set bits there");
      }
      v |= bits;
      memcpy(word, &v, static_cast<size_t>(h.width) / 8);
      continue;
    }
    changes = true;
    Patch patch{word, bits, static_cast<int64_t>(sum), index(t_->terms), 0, static_cast<uint8_t>(h.width),
                static_cast<uint8_t>(h.shift)};
    for (const TermPlan& t : h.terms) {
      if (t.value.kind == ValuePlan::word) t_->terms.push_back({static_cast<uint32_t>(t.value.a), t.factor});
    }
    patch.count = index(t_->terms) - patch.first;
    t_->patches.push_back(patch);
  }
  for (const RefPlan& ref : part.refs) {
    if (!fill_ref(ref, part, index_of_part, at, s, changes)) return false;
  }
  return true;
}

bool Builder::fill_ref(const RefPlan& ref, const PartPlan& part, uint32_t index_of_part, uint8_t* at, const StepPlan& s,
                       bool& changes) {
  auto* word = reinterpret_cast<uint64_t*>(at + ref.at);
  const SlotPlan& slot = s.slots[ref.slot];
  const bool moving = std::any_of(part.params.holes.begin(), part.params.holes.end(), [&](const HolePlan& h) {
    const auto lo = static_cast<uint64_t>(h.at), hi = lo + static_cast<uint64_t>(h.width) / 8;
    return varies(h) && lo < ref.at + 8 && ref.at < hi;
  });
  Place place;
  if (!make_place(slot, s.device, place)) return false;
  const uint64_t offset = load_word(at + ref.at, 64);
  if (moving || (slot.kind == SlotPlan::input && offset > slot.length)) {
    changes = true;
    // The word holds the last run's address: its constant bits come back before its holes.
    t_->patches.insert(t_->patches.begin() + static_cast<int64_t>(restore_at_),
                       Patch{at + ref.at, offset, 0, 0, 0, 64, 0});
    t_->refs.push_back({word, place});
    return true;
  }
  if (offset > slot.length) {
    return fail(Code::invalid, index_of_part, "the ref at byte " + std::to_string(ref.at) + " holds offset " +
                                          std::to_string(static_cast<int64_t>(offset)) + ", slot " + std::to_string(ref.slot) +
                                          " has " + std::to_string(slot.length) + " bytes");
  }
  if (slot.kind == SlotPlan::input) {
    changes = true;
    t_->binds.push_back({word, place.mapping, offset});
  } else {
    const uint64_t address = place.memory.address + place.start + offset;
    memcpy(word, &address, 8);
  }
  return true;
}

void Builder::add_calls(const Call& call, uint32_t part) {
  if (!t_->records.empty()) {
    Record& last = t_->records.back();
    if (last.op == Op::calls && last.step == step_ && last.b < kSegment) {
      t_->calls.push_back(call);
      ++last.b;
      return;
    }
  }
  record(Op::calls, index(t_->calls), 1, part);
  t_->calls.push_back(call);
}

bool Builder::refused_part(const rig_part& part, uint32_t index_of_part, const StepPlan& s) {
  char why[RIG_WHY] = "";
  const Device& device = *plan_.devices[s.device];
  if (device.table()->check_part(device.state(), &part, why) == RIG_OK) return false;
  fail(Code::refused, index_of_part, device.name() + " runs no " + why);
  return true;
}

bool Builder::emit_host_part(const PartPlan& part, uint32_t i, uint8_t* block, uint64_t offset, const StepPlan& s) {
  uint8_t* at = block + offset;
  const auto* words = reinterpret_cast<const uint64_t*>(at);
  const uint32_t first_patch = index(t_->patches), first_ref = index(t_->refs);
  restore_at_ = first_patch;
  if (ints_written_ && part_reads_ints(part)) record(Op::wait_write);
  if (part.kind == RIG_COPY) {
    CopyOp op;
    op.length = part.length;
    if (!make_end(part.src, s, s.device, op.src) || !make_end(part.dst, s, s.device, op.dst)) return false;
    record(Op::copy, index(t_->copies), 0, i);
    t_->copies.push_back(op);
    return true;
  }
  bool changes = false;
  if (!fill_params(part, i, at, s, changes)) return false;
  if (index(t_->patches) != first_patch) record(Op::patch, first_patch, index(t_->patches) - first_patch, i);
  for (uint32_t r = first_ref; r < index(t_->refs); ++r) record(Op::ref, r, 0, i);
  const auto function = reinterpret_cast<HostFunction>(part.function.entry);
  if (part.kind == RIG_FILL) {
    add_calls({function, words, 0, 1}, i);
    return true;
  }
  LaunchOp launch;
  launch.part.kind = RIG_LAUNCH;
  launch.part.function = part.function.entry;
  launch.part.params_size = part.params.size;
  launch.words = words;
  bool fixed = true;
  for (int g = 0; g < 7; ++g) {
    launch.geometry[g] = part.geometry[g];
    fixed = fixed && part.geometry[g].kind != ValuePlan::word;
  }
  if (!fixed) {
    record(Op::launch, index(t_->launches), 0, i);
    t_->launches.push_back(launch);
    return true;
  }
  for (int g = 0; g < 3; ++g) {
    launch.part.groups[g] = leaf_value(part.geometry[g]);
    launch.part.threads[g] = leaf_value(part.geometry[3 + g]);
  }
  launch.part.shared = leaf_value(part.geometry[6]);
  if (refused_part(launch.part, i, s)) return false;
  for (int g = 0; g < 3; ++g) {
    if (launch.part.groups[g] == 0 || launch.part.threads[g] == 0) return true;  // runs nothing
  }
  if (launch.part.groups[0] == 1) {
    add_calls({function, words, 0, launch.part.threads[0]}, i);
  } else {
    record(Op::split, index(t_->splits), 0, i);
    t_->splits.push_back({function, words, launch.part.threads[0], launch.part.groups[0]});
  }
  return true;
}

bool Builder::emit_device_part(const PartPlan& part, uint32_t i, uint8_t* block, uint64_t offset, const StepPlan& s,
                               SubmitOp& op) {
  const Device& device = *plan_.devices[s.device];
  const uint32_t first_patch = index(t_->patches), first_ref = index(t_->refs);
  restore_at_ = first_patch;
  rig_part out{};
  out.kind = part.kind;
  out.params_offset = static_cast<uint32_t>(offset);
  out.params_size = part.params.size;
  out.function = part.function.entry;
  if (part.kind == RIG_FILL && !device.can(RIG_CAN_FILL)) return fail(Code::refused, i, device.name() + " makes no fills");
  if (part.kind == RIG_COPY) {
    if (!device.can(RIG_CAN_COPY)) return fail(Code::refused, i, device.name() + " makes no copies");
    CopyOp copy;
    copy.length = part.length;
    out.length = part.length;
    if (!make_end(part.src, s, s.device, copy.src) || !make_end(part.dst, s, s.device, copy.dst)) return false;
    const auto settle = [](const End& e, rig_end& end) {
      if (e.place.region == nullptr || e.count != 0) return false;
      const uint64_t at = e.place.start + static_cast<uint64_t>(e.base);
      end = {e.place.memory.object, e.place.memory.address + at, at};
      return true;
    };
    const bool src = settle(copy.src, out.src), dst = settle(copy.dst, out.dst);
    if (!src || !dst) {
      op.constant = false;
      op.copies.emplace_back(index(op.parts), copy);
    }
    op.parts.push_back(out);
    return true;
  }
  bool changes = false;
  if (!fill_params(part, i, block + offset, s, changes)) return false;
  if (changes) op.constant = false;
  if (index(t_->patches) != first_patch) record(Op::patch, first_patch, index(t_->patches) - first_patch, i);
  for (uint32_t r = first_ref; r < index(t_->refs); ++r) record(Op::ref, r, 0, i);
  if (part.kind == RIG_LAUNCH) {
    LaunchOp launch;
    launch.part = out;
    bool fixed = true;
    for (int g = 0; g < 7; ++g) {
      launch.geometry[g] = part.geometry[g];
      fixed = fixed && part.geometry[g].kind != ValuePlan::word;
    }
    if (fixed) {
      for (int g = 0; g < 3; ++g) {
        out.groups[g] = leaf_value(part.geometry[g]);
        out.threads[g] = leaf_value(part.geometry[3 + g]);
      }
      out.shared = leaf_value(part.geometry[6]);
      if (refused_part(out, i, s)) return false;
    } else {
      op.constant = false;
      op.launches.emplace_back(index(op.parts), launch);
    }
  }
  op.parts.push_back(out);
  return true;
}

}  // namespace rig
