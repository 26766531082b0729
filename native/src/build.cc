// From a plan to tapes: fill what is known, lay out the parameter blocks, and record what each run must still do.
#include <algorithm>
#include <cstring>
#include <set>

#include "program.h"

namespace rig {

namespace {

constexpr uint32_t kSegment = 64;  // calls between two looks at the clock
constexpr uint32_t kOutside = UINT32_MAX;  // work of a host that is none of the program's devices

bool reads_word(const std::vector<TermPlan>& terms) {
  return std::any_of(terms.begin(), terms.end(), [](const TermPlan& t) { return t.value.kind == ValuePlan::word; });
}

bool varies(const HolePlan& hole) { return reads_word(hole.terms); }

bool part_reads_ints(const PartPlan& p) {
  for (const HolePlan& h : p.params.holes) {
    if (varies(h)) return true;
  }
  for (const ValuePlan& v : p.geometry) {
    if (v.kind == ValuePlan::word) return true;
  }
  return reads_word(p.src.offset) || reads_word(p.dst.offset);
}

uint64_t load_word(const uint8_t* at, int width) {
  uint64_t v = 0;
  memcpy(&v, at, static_cast<size_t>(width) / 8);
  return v;
}

}  // namespace

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
  bool known_sum(const std::vector<TermPlan>& terms, int64_t& sum);
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

bool Builder::fail(Code code, uint32_t part, const std::string& text) {
  const Program::StepInfo& info = p_.steps_[step_];
  err_.step = info.top;
  return err_.set(code, info.path + (part == UINT32_MAX ? "" : ".parts[" + std::to_string(part) + "]") + ": " + text);
}

void Builder::touch(const SlotPlan& slot, uint32_t device, bool writes) {
  const bool host = device == kOutside || plan_.devices[device]->is_host();
  if (slot.kind == SlotPlan::memory) {
    memory_devices_[slot.index].insert(device);
    two_ = two_ || plan_.memory[slot.index].two;
  } else if (slot.kind == SlotPlan::ints) {
    ints_devices_.insert(device);
    two_ = true;
    if (!host) {
      ints_used_ = true;
      ints_written_ = ints_written_ || writes;
    }
  } else if (writes) {
    p_.input_written_[slot.index] = true;
  }
}

void Builder::survey(const std::vector<StepPlan>& steps) {
  for (const StepPlan& s : steps) {
    if (s.kind == StepPlan::submit) {
      std::vector<bool> writes(s.slots.size(), false);
      for (const PartPlan& part : s.parts) {
        for (const RefPlan& r : part.refs) {
          if (r.use != Use::read) writes[r.slot] = true;
        }
        if (part.kind == RIG_COPY) writes[part.dst.slot] = true;
      }
      for (size_t i = 0; i < s.slots.size(); ++i) touch(s.slots[i], s.device, writes[i]);
      for (const FixedPlan& f : s.fixed) touch(f.view, s.device, f.writes);
    } else if (s.kind == StepPlan::move) {
      // Any device may come to make a move, a host outside the program too: its memory is stamped as shared.
      touch(s.slots[0], kOutside, false);
      touch(s.slots[1], kOutside, true);
      for (uint32_t d = 0; d < plan_.devices.size(); ++d) {
        touch(s.slots[0], d, false);
        touch(s.slots[1], d, true);
      }
    } else {
      if (!s.slots.empty()) touch(s.slots[0], p_.host_index_ >= 0 ? static_cast<uint32_t>(p_.host_index_) : kOutside, false);
      if (s.trips.kind == ValuePlan::word || !s.slots.empty()) p_.has_word_loops_ = true;
      survey(s.body);
    }
  }
}

void Builder::name_steps(const std::vector<StepPlan>& steps, const std::string& prefix, int64_t top) {
  for (size_t i = 0; i < steps.size(); ++i) {
    Program::StepInfo info;
    info.path = prefix + "[" + std::to_string(i) + "]";
    info.top = static_cast<uint32_t>(top < 0 ? static_cast<int64_t>(i) : top);
    if (steps[i].kind == StepPlan::submit) info.point = static_cast<int32_t>(p_.submit_steps_++);
    p_.steps_.push_back(info);
    if (steps[i].kind == StepPlan::loop) name_steps(steps[i].body, info.path + ".body", info.top);
  }
}

bool Builder::build() {
  p_.input_written_.assign(plan_.inputs.size(), false);
  memory_devices_.resize(plan_.memory.size());
  for (size_t i = 0; i < plan_.devices.size(); ++i) {
    if (plan_.devices[i]->is_host()) {
      if (p_.host_index_ < 0) p_.host_index_ = static_cast<int32_t>(i);
    } else {
      p_.host_only_ = false;
    }
  }
  survey(plan_.steps);
  name_steps(plan_.steps, "steps", -1);
  for (auto& last : p_.copy_last_) last.resize(plan_.devices.size() + 1);  // one more for a host outside the program
  p_.ever_last_.resize(plan_.devices.size() + 1);
  p_.waits_for_copies_ = !p_.host_only_ && (two_ || plan_.ints != 0);
  for (int copy = 0; copy < (two_ ? 2 : 1); ++copy) {
    copy_ = copy;
    step_ = 0;
    p_.tapes_[copy] = std::make_unique<Tape>();
    t_ = p_.tapes_[copy].get();
    if (!emit(plan_.steps, 0)) return false;
    record(Op::end);
  }
  p_.mapped_.resize(p_.mappings_.size());
  p_.inputs_.resize(plan_.inputs.size());
  return true;
}

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

bool Builder::known_sum(const std::vector<TermPlan>& terms, int64_t& sum) {
  // check made sure that sums of fixed terms are exact.
  for (const TermPlan& t : terms) {
    if (t.value.kind == ValuePlan::fixed) sum += t.value.a * t.factor;
  }
  return !reads_word(terms);
}

bool Builder::make_end(const EndPlan& end, const StepPlan& s, uint32_t device, End& out) {
  if (!make_place(s.slots[end.slot], device, out.place)) return false;
  out.first = index(t_->terms);
  known_sum(end.offset, out.base);
  for (const TermPlan& t : end.offset) {
    if (t.value.kind == ValuePlan::word) t_->terms.push_back({static_cast<uint32_t>(t.value.a), t.factor});
  }
  out.count = index(t_->terms) - out.first;
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

Names Builder::names_of(const StepPlan& s) {
  Names names;
  const auto add = [&](const SlotPlan& slot, Use use) {
    if (slot.kind == SlotPlan::input) {
      for (auto& [input, old] : names.inputs) {
        if (input == slot.index && old != Use::unordered && use != Use::unordered) {
          old = std::max(old, use);
          return;
        }
      }
      names.inputs.emplace_back(slot.index, use);
      return;
    }
    Region* region = region_of(slot);
    // Memory that only one device's work touches is ordered by that device.
    if (slot.kind == SlotPlan::memory && !plan_.memory[slot.index].shared && memory_devices_[slot.index].size() == 1) return;
    for (Named& n : names.memory) {
      if (n.region == region && n.use != Use::unordered && use != Use::unordered) {
        n.use = std::max(n.use, use);
        return;
      }
    }
    names.memory.push_back({region, use});
  };
  for (const PartPlan& part : s.parts) {
    for (const RefPlan& r : part.refs) add(s.slots[r.slot], r.use);
    if (part.kind == RIG_COPY) {
      add(s.slots[part.src.slot], Use::read);
      add(s.slots[part.dst.slot], Use::write);
    }
  }
  for (const FixedPlan& f : s.fixed) add(f.view, f.writes ? Use::write : Use::read);
  return names;
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
    t_->splits.push_back({function, words, launch.part.threads[0], launch.part.groups[0], -1, 0});
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

bool Builder::emit_submit(const StepPlan& s) {
  uint64_t total = 0;
  for (const PartPlan& part : s.parts) total += (part.params.size + 7) / 8 * 8;
  if (total > UINT32_MAX) return fail(Code::refused, UINT32_MAX, "its parameters take more than 4 GiB");
  p_.blocks_.push_back({std::make_unique<uint64_t[]>(total / 8 + 1)});
  auto* block = reinterpret_cast<uint8_t*>(p_.blocks_.back().words.get());
  const Ref<Device>& device = plan_.devices[s.device];
  for (const PartPlan& part : s.parts) {
    if (part.kind == RIG_WORDS) {
      return fail(Code::refused, UINT32_MAX, device->name() + " takes no words: it has no work format of its own");
    }
  }
  for (const FixedPlan& f : s.fixed) {
    Place place;
    if (!make_place(f.view, s.device, place)) return false;
  }
  uint64_t offset = 0;
  if (device->is_host()) {
    record(Op::host_begin, index(t_->host_steps));
    t_->host_steps.push_back({names_of(s)});
    for (uint32_t i = 0; i < s.parts.size(); ++i) {
      if (!emit_host_part(s.parts[i], i, block, offset, s)) return false;
      offset += (s.parts[i].params.size + 7) / 8 * 8;
    }
    record(Op::host_end);
    return true;
  }
  SubmitOp op;
  op.device = s.device;
  op.params = block;
  op.params_size = total;
  op.names = names_of(s);
  if (ints_written_ && std::any_of(s.parts.begin(), s.parts.end(), part_reads_ints)) record(Op::wait_write);
  for (uint32_t i = 0; i < s.parts.size(); ++i) {
    if (!emit_device_part(s.parts[i], i, block, offset, s, op)) return false;
    offset += (s.parts[i].params.size + 7) / 8 * 8;
  }
  rig_work work{};
  work.parts = op.parts.data();
  work.part_count = index(op.parts);
  work.params = block;
  work.params_size = total;
  work.constant = op.constant ? 1 : 0;
  char why[RIG_WHY] = "";
  if (device->table()->prepare(device->state(), &work, &op.prepared, why) != RIG_OK) {
    return fail(Code::refused, UINT32_MAX, device->name() + ": " + why);
  }
  record(Op::submit, index(t_->submits));
  t_->submits.push_back(std::move(op));
  return true;
}

bool Builder::emit_move(const StepPlan& s) {
  MoveOp op;
  op.length = s.length;
  const auto own = [&](const SlotPlan& slot) -> uint32_t {
    if (slot.kind == SlotPlan::input) return plan_.inputs[slot.index].device;
    const Region* region = region_of(slot);
    for (uint32_t d = 0; d < plan_.devices.size(); ++d) {
      if (plan_.devices[d].get() == &region->device()) return d;
    }
    return UINT32_MAX;  // the ints of a program without a host device
  };
  const auto make = [&](const EndPlan& end, End& out) {
    const uint32_t device = own(s.slots[end.slot]);
    if (device != UINT32_MAX) return make_end(end, s, device, out);
    out.place.region = region_of(s.slots[end.slot]);
    out.place.length = s.slots[end.slot].length;
    out.first = index(t_->terms);
    known_sum(end.offset, out.base);
    for (const TermPlan& t : end.offset) {
      if (t.value.kind == ValuePlan::word) t_->terms.push_back({static_cast<uint32_t>(t.value.a), t.factor});
    }
    out.count = index(t_->terms) - out.first;
    return true;
  };
  if (ints_written_ && (reads_word(s.src.offset) || reads_word(s.dst.offset))) record(Op::wait_write);
  if (!make(s.src, op.src) || !make(s.dst, op.dst)) return false;
  record(Op::move, index(t_->moves));
  t_->moves.push_back(op);
  return true;
}

bool Builder::emit_loop(const StepPlan& s, uint32_t depth) {
  const uint32_t at = index(t_->loops);
  t_->loops.emplace_back();
  {
    LoopOp& op = t_->loops.back();
    op.trips = s.trips;
    op.trip = s.trip;
    op.depth = depth;
    op.wait_ints = ints_written_;
    op.wait_uses = ints_used_;
    if (!s.slots.empty()) {
      op.flag = true;
      op.flag_at = static_cast<uint64_t>(s.flag_at);
      const SlotPlan& slot = s.slots[0];
      op.flag_place.length = slot.length;
      if (slot.kind == SlotPlan::input) {
        op.flag_place.input = slot.index;
      } else {
        op.flag_place.region = region_of(slot);
        op.flag_place.start = slot.kind == SlotPlan::ints ? 0 : slot.offset;
      }
    }
  }
  if (p_.loop_states_.size() <= depth) p_.loop_states_.resize(depth + 1);
  const uint32_t step = step_;
  record(Op::loop, at);
  const uint32_t first = index(t_->records);
  ++step_;
  if (!emit(s.body, depth + 1)) return false;
  const uint32_t after = step_;
  step_ = step;
  record(Op::next, at, first);
  t_->loops[at].past = index(t_->records);
  step_ = after - 1;
  return true;
}

bool Builder::emit(const std::vector<StepPlan>& steps, uint32_t depth) {
  for (const StepPlan& s : steps) {
    const bool ok = s.kind == StepPlan::submit ? emit_submit(s) : s.kind == StepPlan::move ? emit_move(s) : emit_loop(s, depth);
    if (!ok) return false;
    ++step_;
  }
  return true;
}

Ref<Program> Program::build(ProgramPlan plan, Error& err) {
  Ref<Program> program(new Program());
  program->plan_ = std::move(plan);
  Builder builder(*program, err);
  if (!builder.build()) return {};
  // What only the building needed.
  program->plan_.steps.clear();
  return program;
}

Program::~Program() {
  // Memory that only this program's work touches has no stamps: it is kept until the last of that work.
  for (const MemoryPlan& m : plan_.memory) {
    if (m.shared) continue;
    for (const Ref<Region>& region : m.copies) {
      for (const Stamp& s : ever_last_) {
        if (region && s.timeline) Order::keep(region.get(), s.timeline, s.value);
      }
    }
  }
  for (const auto& tape : tapes_) {
    if (!tape) continue;
    for (const SubmitOp& op : tape->submits) {
      const Device& device = *plan_.devices[op.device];
      device.table()->release(device.state(), op.prepared);
    }
  }
}

}  // namespace rig
