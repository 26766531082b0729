// The steps of a plan: who touches what, where each step is, and what each becomes on the tape.
#include "builder.h"

namespace rig {
namespace {

constexpr uint32_t kOutside = UINT32_MAX;  // work of a host that is none of the program's devices

}  // namespace

bool Builder::fail(Code code, uint32_t part, const std::string& text) {
  const Program::StepInfo& info = p_.steps_[step_];
  err_.step = info.top;
  return err_.set(code, info.path + (part == UINT32_MAX ? "" : ".parts[" + std::to_string(part) + "]") + ": " + text);
}

void Builder::touch(const SlotPlan& slot, uint32_t device, bool writes) {
  const bool host = device == kOutside || plan_.devices[device]->is_host();
  if (slot.kind == SlotPlan::memory) {
    memory_devices_[slot.index].insert(device);
    if (writes) p_.memory_written_[slot.index] = true;
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
  p_.memory_written_.assign(plan_.memory.size(), false);
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
    make_offset(end.offset, out);
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
