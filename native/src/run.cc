// One run: the frame is checked and taken over, then the tape of the run's copy is executed record by record.
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "futex.h"
#include "pool.h"
#include "run_state.h"

namespace rig {
namespace {

constexpr int64_t kPollNs = 20'000'000;      // between two polls of the gate
constexpr uint32_t kCountdown = 256;         // calls or trips between two looks at the clock, at most
constexpr uint32_t kStride = 64;             // the same of one record's calls
constexpr int64_t kShortNs = 50'000;         // a run shorter than this keeps what its caller holds
constexpr int64_t kLookoutNs = 100'000;      // a run with this much split work keeps the pool's workers awake
constexpr uint64_t kTimeEvery = 16;          // runs between two measurements of a run

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

std::string decimal(uint64_t n) { return std::to_string(n); }

}  // namespace

bool Program::long_by_estimate() const {
  if (has_word_loops_) return true;
  const int64_t ns = estimate_.load(std::memory_order_relaxed);
  return ns < 0 || ns >= kShortNs;
}

bool Program::running_on_this_thread() const { return runner_.load(std::memory_order_relaxed) == this_thread(); }

bool Program::enter(Gate* gate, Error& err) {
  if (!run_lock_.try_lock()) {
    if (running_on_this_thread()) {
      return err.set(Code::invalid, "the program is running on this thread already: a run within its own run");
    }
    if (gate) gate->release();
    run_lock_.lock();
  }
  runner_.store(this_thread(), std::memory_order_relaxed);
  return true;
}

void Program::leave() {
  runner_.store(0, std::memory_order_relaxed);
  run_lock_.unlock();
}

bool Program::pause(Gate* gate, std::vector<Stamp>& ends, Error& err) {
  if (!enter(gate, err)) return false;
  ends = ever_last_;
  return true;
}

bool Program::resume() {
  if (!running_on_this_thread()) return false;
  leave();
  return true;
}

bool Program::check_frame(const Frame& f, Error& err) {
  if (f.input_count != plan_.inputs.size()) {
    return err.set(Code::invalid, "the frame has " + decimal(f.input_count) + " inputs, the program takes " +
                                      decimal(plan_.inputs.size()));
  }
  if (f.int_count > plan_.ints) {
    return err.set(Code::invalid, "the frame has " + decimal(f.int_count) + " ints, the program has " + decimal(plan_.ints));
  }
  for (size_t i = 0; i < f.input_count; ++i) {
    const FrameInput& in = f.inputs[i];
    const InputPlan& want = plan_.inputs[i];
    const Device* device = plan_.devices[want.device].get();
    if (in.device != device) {
      return err.set(Code::invalid, "input " + decimal(i) + " is memory of " + in.device->name() +
                                        ", the program takes memory of " + device->name());
    }
    if (in.nbytes < want.nbytes) {
      return err.set(Code::invalid, "input " + decimal(i) + " has " + decimal(in.nbytes) + " bytes, the program needs " +
                                        decimal(want.nbytes));
    }
    if (!in.writable && input_written_[i]) {
      return err.set(Code::invalid, "input " + decimal(i) + " is read-only memory, the program writes it");
    }
    if (in.region && !in.region->live()) {
      return err.set(Code::invalid, "input " + decimal(i) + " is a dead buffer: " + in.region->dead_reason());
    }
    inputs_[i] = in;
  }
  for (size_t m = 0; m < mappings_.size(); ++m) {
    const FrameInput& in = inputs_[mappings_[m].input];
    const Ref<Device>& device = plan_.devices[mappings_[m].device];
    if (device.get() == in.device) {
      mapped_[m] = in.region ? in.region->memory() : rig_memory{};
      mapped_[m].address = in.address;
      continue;
    }
    Error why;
    if (!in.region->map(device, mapped_[m], why)) {
      if (why.code == Code::lost) {
        err = why;
        return false;
      }
      return err.set(Code::invalid, "input " + decimal(mappings_[m].input) + " cannot be borrowed: " + why.message);
    }
    mapped_[m].address += in.offset;
  }
  return true;
}

Stamp& Program::last(Run& run, uint32_t device) { return (*run.last)[device]; }

bool Program::start(Run& run) {
  const Frame& f = run.frame;
  run.copy = static_cast<int>(runs_ & 1);
  run.tape = (tapes_[1] && run.copy == 1 ? tapes_[1] : tapes_[0]).get();
  run.last = &copy_last_[run.copy];
  run.ints_region = plan_.int_copies[run.copy].get();
  run.ints = run.ints_region ? reinterpret_cast<int64_t*>(run.ints_region->host()) : nullptr;
  if (!host_only_) {
    if (waits_for_copies_) {
      for (const Stamp& s : *run.last) {
        if (!s.timeline) continue;
        const Reach r = s.timeline->wait(s.value, -1, run.gate);
        if (r == Reach::lost) return lost_error(*s.timeline, s.value, run.err);
        if (r == Reach::interrupted) return run.err.set(Code::interrupted, "interrupted");
      }
    }
    for (const Ref<Device>& device : plan_.devices) {
      if (!device->usable(run.err)) return false;
    }
  }
  ++runs_;
  for (Stamp& s : *run.last) s = Stamp{};
  if (f.int_count != 0) memcpy(run.ints, f.ints, f.int_count * sizeof(int64_t));
  if (f.step_points) {
    Timeline* host = &host_device()->timeline();
    for (uint32_t i = 0; i < submit_steps_; ++i) f.step_points[i] = {host, 0};
  }
  if (host_only_) {
    // Nothing of this program runs elsewhere: what the inputs wait for can be waited for once.
    waits_.clear();
    for (size_t i = 0; i < f.wait_count; ++i) waits_.add(static_cast<Timeline*>(f.waits[i].timeline), f.waits[i].value);
    for (size_t i = 0; i < f.input_count; ++i) {
      if (inputs_[i].region && Order::stamped(*inputs_[i].region)) {
        const Named named{inputs_[i].region, input_written_[i] ? Use::write : Use::read};
        Order::lock().lock();
        Order::gather(&named, 1, nullptr, waits_);
        Order::lock().unlock();
      }
    }
    if (!waits_.empty() && !Order::wait_all(waits_, run.gate, run.err)) return false;
  }
  for (const Bind& b : run.tape->binds) *b.at = mapped_[b.mapping].address + b.offset;
  return true;
}

bool Program::run(const Frame& frame, Gate* gate, std::vector<Stamp>* ends, Error& err) {
  if (!enter(gate, err)) return false;
  const size_t pins = frame.pinned ? 0 : frame.input_count;
  for (size_t i = 0; i < pins; ++i) {
    if (frame.inputs[i].region) frame.inputs[i].region->pin();
  }
  Run run{frame, gate, ends, err};
  bool ok = check_frame(frame, err) && start(run);
  if (ok && long_by_estimate()) {
    run.watch = true;
    run.stride = kStride / 4;
    run.polled_at = run.looked_at = now_ns();
  }
  if (ok) {
    const bool timed = timed_ < 8 || timed_ % kTimeEvery == 0;
    ++timed_;
    const int64_t began = timed ? now_ns() : 0;
    pool_entered_ = split_ns_ >= kLookoutNs && pool_enter_run();
    ok = execute(run);
    if (pool_entered_) pool_leave_run();
    if (timed && ok) note_time(now_ns() - began, *run.tape);
    for (size_t d = 0; d < run.last->size(); ++d) {
      if ((*run.last)[d].timeline) ever_last_[d] = (*run.last)[d];
    }
    if (ends) {
      ends->clear();
      for (size_t d = 0; d < plan_.devices.size(); ++d) {
        if ((*run.last)[d].timeline) ends->push_back((*run.last)[d]);
      }
    }
  }
  for (size_t i = 0; i < pins; ++i) {
    if (frame.inputs[i].region) frame.inputs[i].region->unpin();
  }
  leave();
  return ok;
}

void Program::note_time(int64_t ns, const Tape& tape) {
  split_ns_ = 0;
  for (const Split& s : tape.splits) split_ns_ += s.cost_ns;
  times_[times_at_++ % kTimes] = ns;
  std::copy(times_, times_ + kTimes, sorted_);
  std::sort(sorted_, sorted_ + kTimes);
  // Until there are enough, the longest seen stands.
  estimate_.store(times_at_ < kTimes ? sorted_[kTimes - 1] : sorted_[kTimes / 2], std::memory_order_relaxed);
}

bool Program::poll(Run& run, uint32_t work) {
  if (run.countdown > work && !(run.watch && work >= run.stride)) {
    run.countdown -= work;
    return true;
  }
  run.countdown = kCountdown;
  if (!run.gate) return true;
  const int64_t now = now_ns();
  if (run.polled_at == 0) {
    run.polled_at = run.looked_at = now;
    run.countdown = 16;
    return true;
  }
  run.stride = now - run.looked_at > kPollNs / 4 ? std::max(run.stride / 4, 1u) : std::min(run.stride * 2, kStride);
  run.looked_at = now;
  if (now - run.polled_at < kPollNs) {
    // Slow work: look again sooner.
    if (now - run.polled_at > kPollNs / 4) run.countdown = 8;
    return true;
  }
  run.polled_at = now;
  run.countdown = 8;
  run.gate->release();  // the estimate was wrong: others may go on now
  return run.gate->poll() || run.err.set(Code::interrupted, "interrupted");
}

bool Program::run_calls(Run& run, const Record& r) {
  const Call* call = run.tape->calls.data() + r.a;
  const Call* end = call + r.b;
  while (call != end) {
    const auto n = std::min(run.stride, static_cast<uint32_t>(end - call));
    for (const Call* until = call + n; call != until; ++call) call->function(call->words, call->begin, call->end);
    if (!poll(run, n)) return false;
  }
  return true;
}

bool Program::execute(Run& run) {
  Tape& t = *run.tape;
  const Record* records = t.records.data();
  for (const Record* r = records;; ++r) {
    switch (r->op) {
      case Op::calls:
        if (!run_calls(run, *r)) return false;
        break;
      case Op::split:
        run_split_op(t.splits[r->a]);
        if (!poll(run, 1)) return false;
        break;
      case Op::launch:
        if (!run_launch(run, *r) || !poll(run, 1)) return false;
        break;
      case Op::patch:
        if (!run_patches(run, *r)) return false;
        break;
      case Op::ref:
        if (!run_ref(run, *r)) return false;
        break;
      case Op::copy:
        if (!run_copy(run, *r)) return false;
        break;
      case Op::wait_write:
      case Op::wait_use:
        run.step = r->step;
        if (!wait_ints(run, r->op == Op::wait_use)) return false;
        break;
      case Op::host_begin:
        if (!run_host_begin(run, *r)) return false;
        break;
      case Op::host_end: run_host_end(run, *r); break;
      case Op::submit:
        if (!run_submit(run, *r)) return false;
        break;
      case Op::move:
        if (!run_move(run, *r)) return false;
        break;
      case Op::loop: {
        run.step = r->step;
        bool more = false;
        const LoopOp& loop = t.loops[r->a];
        if (!enter_loop(run, loop, more)) return false;
        if (!more) r = records + loop.past - 1;
        break;
      }
      case Op::next: {
        run.step = r->step;
        bool more = false;
        const LoopOp& loop = t.loops[r->a];
        ++loop_states_[loop.depth].index;
        if (!poll(run, 1) || !loop_goes_on(run, loop, more)) return false;
        if (more) r = records + r->b - 1;
        break;
      }
      case Op::end: return true;
    }
  }
}

}  // namespace rig
