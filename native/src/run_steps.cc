// What each kind of record does in a run.
#include <algorithm>
#include <cstring>

#include "futex.h"
#include "pool.h"
#include "run_state.h"

namespace rig {
namespace {

constexpr int64_t kSplitNs = 60'000;         // a launch shorter than this stays on one thread
constexpr int64_t kSplitLookoutNs = 6'000;   // the same while the workers look out for jobs
constexpr uint32_t kRemeasure = 64;          // runs between two measurements of a short launch
constexpr uint32_t kMeasures = 2;            // runs of a launch on one thread before it may be split

std::string decimal(uint64_t n) { return std::to_string(n); }

}  // namespace

void Program::run_split_op(Split& s) {
  // Waking a sleeping worker costs tens of microseconds, reaching one that looks out a few: a shorter launch stays here.
  const int64_t least = pool_entered_ ? kSplitLookoutNs : kSplitNs;
  if (s.measured >= kMeasures && s.cost_ns >= least) {
    const int64_t start = now_ns();
    if (!split_rule_.split_at(start)) {
      run_blocks(s.function, s.words, s.iterations, s.blocks);
      return;
    }
    const bool woke = run_split(s.function, s.words, s.iterations, s.blocks);
    const int64_t end = now_ns();
    split_rule_.count(end, end - start - s.cost_ns, woke);
    return;
  }
  if (s.measured >= kMeasures && ++s.age % kRemeasure != 0) {
    run_blocks(s.function, s.words, s.iterations, s.blocks);
    return;
  }
  const int64_t began = now_ns();
  run_blocks(s.function, s.words, s.iterations, s.blocks);
  const int64_t took = now_ns() - began;
  // The first run meets cold caches and new pages.
  s.cost_ns = s.measured == 0 || s.measured >= kMeasures ? took : std::min(s.cost_ns, took);
  if (s.measured < kMeasures) ++s.measured;
}

bool Program::run_patches(Run& run, const Record& r) {
  for (uint32_t i = r.a; i < r.a + r.b; ++i) {
    const Patch& p = run.tape->patches[i];
    auto sum = static_cast<uint64_t>(p.base);
    const WordTerm* term = run.tape->terms.data() + p.first;
    for (uint32_t k = 0; k < p.count; ++k) {
      sum += static_cast<uint64_t>(run.ints[term[k].word]) * static_cast<uint64_t>(term[k].factor);
    }
    uint64_t v = sum >> p.shift;
    if (p.width == 32) v &= UINT32_MAX;
    if ((v & p.bits) != 0) {
      run.step = r.step;
      return run.fail(*this, Code::invalid, "the value " + decimal(v) + " read from the ints meets set bits of its parameter's word", r.part);
    }
    v |= p.bits;
    memcpy(p.at, &v, p.width / 8u);
  }
  return true;
}

bool Program::run_ref(Run& run, const Record& r) {
  const RefFix& ref = run.tape->refs[r.a];
  const Place& place = ref.place;
  const uint64_t offset = *ref.at;
  const uint64_t length = place.region ? place.length : inputs_[place.input].nbytes;
  if (offset > length) {
    run.step = r.step;
    return run.fail(*this, Code::invalid, "a ref's offset is " + std::to_string(static_cast<int64_t>(offset)) + ", its slot has " +
                                       decimal(length) + " bytes", r.part);
  }
  *ref.at = offset + (place.region ? place.memory.address + place.start : mapped_[place.mapping].address);
  return true;
}

bool Program::eval_end(Run& run, const End& end, uint64_t length, const char* what, int64_t part, uint64_t& offset) {
  int64_t sum = end.base;
  const WordTerm* term = run.tape->terms.data() + end.first;
  for (uint32_t k = 0; k < end.count; ++k) {
    const uint32_t word = term[k].word;
    const int64_t value = word < kPast ? run.ints[word] : 1;
    int64_t product = 0;
    if (word == kPast || __builtin_mul_overflow(value, term[k].factor, &product) || __builtin_add_overflow(sum, product, &sum)) {
      std::string why = std::string(what) + " offset is past a 64-bit integer";
      if (word < kPast) {
        why += " at word " + decimal(word) + " of the ints, which holds " + std::to_string(value) + ", times " +
               std::to_string(term[k].factor);
      }
      return run.fail(*this, Code::invalid, why, part);
    }
  }
  const uint64_t size = end.place.region ? end.place.length : inputs_[end.place.input].nbytes;
  if (sum < 0 || static_cast<uint64_t>(sum) > size || length > size - static_cast<uint64_t>(sum)) {
    return run.fail(*this, Code::invalid, std::string(what) + " of " + decimal(length) + " bytes at offset " + std::to_string(sum) +
                                       " is not within its buffer of " + decimal(size) + " bytes", part);
  }
  offset = static_cast<uint64_t>(sum);
  return true;
}

bool Program::run_copy(Run& run, const Record& r) {
  run.step = r.step;
  const CopyOp& op = run.tape->copies[r.a];
  uint64_t s = 0, d = 0;
  if (!eval_end(run, op.src, op.length, "a copy's source", r.part, s) ||
      !eval_end(run, op.dst, op.length, "a copy's destination", r.part, d)) {
    return false;
  }
  const auto at = [&](const End& e, uint64_t offset) {
    return (e.place.region ? e.place.memory.address + e.place.start : mapped_[e.place.mapping].address) + offset;
  };
  memmove(reinterpret_cast<void*>(at(op.dst, d)), reinterpret_cast<const void*>(at(op.src, s)), op.length);
  return true;
}

bool Program::eval_geometry(Run& run, LaunchOp& op, const Device& device) {
  const auto value = [&](const ValuePlan& v) {
    return static_cast<uint64_t>(v.kind == ValuePlan::word ? run.ints[v.a] : v.a);
  };
  for (int g = 0; g < 3; ++g) {
    op.part.groups[g] = value(op.geometry[g]);
    op.part.threads[g] = value(op.geometry[3 + g]);
  }
  op.part.shared = value(op.geometry[6]);
  char why[RIG_WHY] = "";
  if (device.table()->check_part(device.state(), &op.part, why) == RIG_OK) return true;
  return run.err.set(Code::invalid, device.name() + " runs no " + why);
}

bool Program::run_launch(Run& run, const Record& r) {
  run.step = r.step;
  LaunchOp& op = run.tape->launches[r.a];
  if (!eval_geometry(run, op, *plan_.devices[static_cast<uint32_t>(host_index_)])) {
    return run.fail(*this, Code::invalid, run.err.message, r.part);
  }
  for (int g = 0; g < 3; ++g) {
    if (op.part.groups[g] == 0 || op.part.threads[g] == 0) return true;
  }
  run_split(reinterpret_cast<HostFunction>(op.part.function), op.words, op.part.threads[0], op.part.groups[0]);
  return true;
}

bool Program::add_names(Run& run, const Names& names) {
  named_.assign(names.memory.begin(), names.memory.end());
  for (const auto& [input, use] : names.inputs) {
    if (inputs_[input].region) named_.push_back({inputs_[input].region, use});
  }
  waits_.clear();
  static_cast<void>(run);
  return true;
}

bool Program::run_host_begin(Run& run, const Record& r) {
  run.step = r.step;
  if (host_only_ && run.tape->host_steps[r.a].names.memory.empty()) return true;  // start() waited for the inputs
  add_names(run, run.tape->host_steps[r.a].names);
  for (size_t i = 0; i < run.frame.wait_count; ++i) {
    waits_.add(static_cast<Timeline*>(run.frame.waits[i].timeline), run.frame.waits[i].value);
  }
  ForkLock& order = Order::lock();
  if (!order.try_lock()) {
    if (run.gate) run.gate->release();
    order.lock();
  }
  Order::gather(named_.data(), named_.size(), nullptr, waits_);
  order.unlock();
  for (const Named& n : named_) {
    if (!n.region->live()) return run.fail(*this, Code::invalid, "a buffer it names is dead: " + n.region->dead_reason());
  }
  if (!Order::wait_all(waits_, run.gate, run.err)) return run.fail_below(*this);
  return true;
}

void Program::run_host_end(Run& run, const Record& r) {
  Device& host = *plan_.devices[static_cast<uint32_t>(host_index_)];
  const uint64_t value = host.timeline().count_done();
  Stamp& mine = last(run, static_cast<uint32_t>(host_index_));
  if (!mine.timeline) mine.timeline = &host.timeline();
  mine.value = value;
  const int32_t point = steps_[r.step].point;
  if (run.frame.step_points && point >= 0) run.frame.step_points[point].value = value;
}

bool Program::run_submit(Run& run, const Record& r) {
  run.step = r.step;
  SubmitOp& op = run.tape->submits[r.a];
  Device& device = *plan_.devices[op.device];
  for (auto& [part, copy] : op.copies) {
    uint64_t s = 0, d = 0;
    if (!eval_end(run, copy.src, copy.length, "a copy's source", part, s) ||
        !eval_end(run, copy.dst, copy.length, "a copy's destination", part, d)) {
      return false;
    }
    const auto settle = [&](const End& e, uint64_t offset) -> rig_end {
      if (e.place.region) {
        const uint64_t at = e.place.start + offset;
        return {e.place.memory.object, e.place.memory.address + at, at};
      }
      const rig_memory& m = mapped_[e.place.mapping];
      return {m.object, m.address + offset, inputs_[e.place.input].offset + offset};
    };
    op.parts[part].src = settle(copy.src, s);
    op.parts[part].dst = settle(copy.dst, d);
  }
  for (auto& [part, launch] : op.launches) {
    if (!eval_geometry(run, launch, device)) return run.fail(*this, Code::invalid, run.err.message, part);
    rig_part& p = op.parts[part];
    std::copy(launch.part.groups, launch.part.groups + 3, p.groups);
    std::copy(launch.part.threads, launch.part.threads + 3, p.threads);
    p.shared = launch.part.shared;
  }
  add_names(run, op.names);
  Stamp& mine = last(run, op.device);
  if (!mine.timeline) {
    for (size_t i = 0; i < run.frame.wait_count; ++i) {
      waits_.add(static_cast<Timeline*>(run.frame.waits[i].timeline), run.frame.waits[i].value);
    }
  }
  // A failed submission of this program may have left its unstamped memory unwritten: later ones must not use it.
  if (const Stamp& before = ever_last_[op.device]; before.timeline && device.timeline().any_failed()) {
    const Stamp& chain = mine.timeline ? mine : before;
    waits_.add(chain.timeline, chain.value);
  } else if (mine.timeline && !mine.timeline->reached(mine.value)) {
    waits_.add(mine.timeline, mine.value);
  }
  rig_work work{};
  work.parts = op.parts.data();
  work.part_count = static_cast<uint32_t>(op.parts.size());
  work.constant = op.constant ? 1 : 0;
  work.params = op.params;
  work.params_size = op.params_size;
  work.prepared = op.prepared;
  if (!submit_work(device, work, named_.data(), named_.size(), waits_, this, run.gate, run.err)) return run.fail_below(*this);
  if (!mine.timeline) mine.timeline = &device.timeline();
  mine.value = work.value;
  const int32_t point = steps_[r.step].point;
  if (run.frame.step_points && point >= 0) {
    run.frame.step_points[point] = mine;
  }
  return true;
}

bool Program::run_move(Run& run, const Record& r) {
  run.step = r.step;
  const MoveOp& op = run.tape->moves[r.a];
  uint64_t s = 0, d = 0;
  if (!eval_end(run, op.src, op.length, "a move's source", -1, s) ||
      !eval_end(run, op.dst, op.length, "a move's destination", -1, d)) {
    return false;
  }
  const auto end_of = [&](const End& e, uint64_t offset) -> MoveEnd {
    if (e.place.region) return {Ref<Region>(e.place.region), e.place.start + offset};
    const FrameInput& in = inputs_[e.place.input];
    return {Ref<Region>(in.region), in.offset + offset};
  };
  const MoveEnd src = end_of(op.src, s), dst = end_of(op.dst, d);
  if (src.region.get() == dst.region.get() && (op.src.count != 0 || op.dst.count != 0)) {
    const uint64_t a = src.offset, b = dst.offset;
    if (a < b + op.length && b < a + op.length) {
      return run.fail(*this, Code::invalid, "a move's ends overlap: " + decimal(op.length) + " bytes from " + decimal(a) + " to " + decimal(b));
    }
  }
  waits_.clear();
  for (size_t i = 0; i < run.frame.wait_count; ++i) {
    waits_.add(static_cast<Timeline*>(run.frame.waits[i].timeline), run.frame.waits[i].value);
  }
  Stamp point;
  if (op.length == 0) return true;
  if (!submit_move(src, dst, op.length, waits_, run.gate, point, run.err)) return run.fail_below(*this);
  for (uint32_t device = 0; device < plan_.devices.size(); ++device) {
    if (&plan_.devices[device]->timeline() == point.timeline) {
      last(run, device) = point;
      return true;
    }
  }
  last(run, static_cast<uint32_t>(plan_.devices.size())) = point;  // made by a host outside the program: done
  return true;
}

bool Program::wait_ints(Run& run, bool uses) {
  if (!run.ints_region) return true;
  if (!run.ints_region->wait_idle(uses, run.gate, run.err)) return run.fail_below(*this);
  return true;
}

bool Program::enter_loop(Run& run, const LoopOp& loop, bool& more) {
  if (loop.wait_ints && loop.trips.kind == ValuePlan::word && !wait_ints(run, false)) return false;
  LoopState& state = loop_states_[loop.depth];
  state.trips = loop.trips.kind == ValuePlan::word ? run.ints[loop.trips.a] : loop.trips.a;
  state.index = 0;
  if (state.trips > 1000 && run.gate) run.gate->release();
  return loop_goes_on(run, loop, more);
}

bool Program::loop_goes_on(Run& run, const LoopOp& loop, bool& more) {
  const LoopState& state = loop_states_[loop.depth];
  more = state.index < state.trips;
  if (!more) return true;
  if (loop.flag) {
    const FrameInput* in = loop.flag_place.region ? nullptr : &inputs_[loop.flag_place.input];
    const uint64_t size = in ? in->nbytes : loop.flag_place.length;
    if (loop.flag_at >= size) {
      return run.fail(*this, Code::invalid, "the flag at byte " + decimal(loop.flag_at) + " is past its buffer of " + decimal(size) + " bytes");
    }
    uint8_t flag = 0;
    Region* region = in ? in->region : loop.flag_place.region;
    const uint64_t at = (in ? in->offset : loop.flag_place.start) + loop.flag_at;
    if (region) {
      if (!region->wait_idle(false, run.gate, run.err)) return run.fail_below(*this);
      if (region->host()) {
        flag = *reinterpret_cast<const volatile uint8_t*>(region->host() + at);
      } else {
        char why[RIG_WHY] = "";
        Device& device = region->device();
        if (!device.report(device.table()->read(device.state(), &region->memory(), at, &flag, 1, why), why, run.err)) {
          return run.fail_below(*this);
        }
      }
    } else {
      flag = *reinterpret_cast<const volatile uint8_t*>(in->address + loop.flag_at);
    }
    if (flag == 0) {
      more = false;
      return true;
    }
  }
  if (loop.trip >= 0) {
    if (loop.wait_uses && !wait_ints(run, true)) return false;
    run.ints[loop.trip] = state.index;
  }
  return true;
}

}  // namespace rig
