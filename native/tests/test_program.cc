// A program through its plan, over the host and two memory devices, without Python.
#include "program.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"

using namespace rig;

namespace {

// to[i] = from[i] + k: words are to, from, k.
void add(const uint64_t* words, uint64_t begin, uint64_t end) {
  auto* to = reinterpret_cast<uint64_t*>(words[0]);
  const auto* from = reinterpret_cast<const uint64_t*>(words[1]);
  for (uint64_t i = begin; i < end; ++i) to[i] = from[i] + words[2];
}

constexpr uint64_t kCount = 32, kBytes = 8 * kCount;

Ref<Device> memory(const char* name, double delay = 0, bool borrows = true) {
  MemoryDeviceOptions options;
  options.name = name;
  options.delay = delay;
  options.borrows = borrows;
  return make_memory_device(options);
}

Ref<Region> made(const Ref<Device>& device, uint64_t nbytes = kBytes) {
  Error err;
  Ref<Region> region = Region::alloc(device, nbytes, 0, err);
  CHECK(region);
  return region;
}

SlotPlan slot(SlotPlan::Kind kind, uint32_t index) { return {kind, index, 0, kBytes}; }
ValuePlan fixed(int64_t v) { return {ValuePlan::fixed, v, 0}; }
ValuePlan word(int64_t i) { return {ValuePlan::word, i, 0}; }

// The bytes of parameters live as long as the building.
struct Plan {
  ProgramPlan plan;
  std::vector<std::unique_ptr<uint64_t[]>> params;

  // A launch of add on slots 0 (written) and 1 (read); word 2 is k, or, for int_word >= 0, that word of the ints.
  PartPlan part(uint64_t k, int64_t int_word = -1, uint64_t blocks = 1) {
    params.push_back(std::make_unique<uint64_t[]>(3));
    params.back()[2] = int_word < 0 ? k : 0;
    PartPlan p;
    p.kind = RIG_LAUNCH;
    p.function.entry = reinterpret_cast<uint64_t>(&add);
    p.params.bytes = reinterpret_cast<const uint8_t*>(params.back().get());
    p.params.size = 24;
    if (int_word >= 0) {
      HolePlan hole;
      hole.at = 16;
      hole.add = static_cast<int64_t>(k);
      hole.terms.push_back({word(int_word), 1});
      p.params.holes.push_back(hole);
    }
    p.refs = {{0, 0, Use::write}, {1, 8, Use::read}};
    const int64_t geometry[] = {static_cast<int64_t>(blocks), 1, 1, static_cast<int64_t>(kCount), 1, 1, 0};
    for (int i = 0; i < 7; ++i) p.geometry[i] = fixed(geometry[i]);
    return p;
  }
  static StepPlan submit(uint32_t device, PartPlan p, SlotPlan to, SlotPlan from) {
    StepPlan s;
    s.kind = StepPlan::submit;
    s.device = device;
    s.parts.push_back(std::move(p));
    s.slots = {to, from};
    return s;
  }
  static StepPlan move(SlotPlan src, SlotPlan dst) {
    StepPlan s;
    s.kind = StepPlan::move;
    s.slots = {src, dst};
    s.src.slot = 0;
    s.dst.slot = 1;
    s.length = kBytes;
    return s;
  }
  uint32_t memory(const Ref<Device>& device, bool two = false) {
    MemoryPlan m;
    m.copies[0] = made(device);
    m.two = two;
    m.copies[1] = two ? made(device) : m.copies[0];
    plan.memory.push_back(m);
    return static_cast<uint32_t>(plan.memory.size() - 1);
  }
  void ints(uint64_t count) {
    plan.ints = count;
    for (Ref<Region>& copy : plan.int_copies) copy = made(host_device(), 8 * count);
  }
};

FrameInput input(const Ref<Region>& region) {
  return {region.get(), &region->device(), 0, region->memory().address, region->nbytes(), true};
}

void set(const Ref<Region>& region, uint64_t value) {
  Error err;
  CHECK(region->wait_idle(true, nullptr, err));
  for (uint64_t i = 0; i < kCount; ++i) reinterpret_cast<uint64_t*>(region->host())[i] = value + i;
}

bool all(const Ref<Region>& region, uint64_t value) {
  Error err;
  if (!region->wait_idle(false, nullptr, err)) return false;
  for (uint64_t i = 0; i < kCount; ++i) {
    if (reinterpret_cast<uint64_t*>(region->host())[i] != value + i) return false;
  }
  return true;
}

}  // namespace

TEST(program_runs_over_the_host_and_two_queues) {
  const Ref<Device> a = memory("a", 0.0005), b = memory("b");
  Plan p;
  p.plan.devices = {host_device(), a, b};
  p.plan.inputs = {{0, kBytes}, {0, kBytes}};
  p.ints(1);
  const auto in = slot(SlotPlan::input, 0), out = slot(SlotPlan::input, 1);
  const auto h = slot(SlotPlan::memory, p.memory(host_device())), on_a = slot(SlotPlan::memory, p.memory(a, true)),
             on_b = slot(SlotPlan::memory, p.memory(b));
  p.plan.steps.push_back(Plan::submit(0, p.part(1, 0, 4), h, in));      // h = in + 1 + ints[0]
  p.plan.steps.push_back(Plan::submit(1, p.part(10), on_a, h));         // a = h + 10
  p.plan.steps.push_back(Plan::move(on_a, on_b));                       // b = a
  p.plan.steps.push_back(Plan::submit(2, p.part(100), out, on_b));      // out = b + 100
  Error err;
  const Ref<Program> program = Program::build(std::move(p.plan), err);
  CHECK(program && err.message.empty());
  if (!program) return;
  CHECK(program->submit_steps() == 3 && !program->host_only() && program->input_written(1) && !program->input_written(0));
  const Ref<Region> x = made(host_device()), y = made(host_device());
  for (int64_t run = 0; run < 60; ++run) {
    set(x, static_cast<uint64_t>(run) * 1000);
    const FrameInput inputs[] = {input(x), input(y)};
    Stamp points[3];
    std::vector<Stamp> ends;
    Frame frame;
    frame.inputs = inputs;
    frame.input_count = 2;
    frame.ints = &run;
    frame.int_count = 1;
    frame.step_points = points;
    CHECK(program->run(frame, nullptr, &ends, err));
    CHECK(ends.size() == 3 && ends[0].timeline == &host_device()->timeline() && ends[1].timeline == &a->timeline() &&
          ends[2].timeline == &b->timeline());
    CHECK(points[2].timeline == &b->timeline() && points[2].value == ends[2].value);
    CHECK(ends[1].value == points[1].value + 1);  // the move is the last on a
    CHECK(all(y, static_cast<uint64_t>(run) * 1000 + 111 + static_cast<uint64_t>(run)));
    if (run % 3 == 0) CHECK(all(x, static_cast<uint64_t>(run) * 1000));
  }
}

TEST(program_runs_on_each_of_many_threads_in_turn) {
  const Ref<Device> a = memory("a");
  Plan p;
  p.plan.devices = {host_device(), a};
  p.plan.inputs = {{0, kBytes}, {0, kBytes}};
  p.ints(1);
  const auto in = slot(SlotPlan::input, 0), out = slot(SlotPlan::input, 1), on_a = slot(SlotPlan::memory, p.memory(a));
  p.plan.steps.push_back(Plan::submit(1, p.part(1, 0), on_a, in));
  p.plan.steps.push_back(Plan::submit(1, p.part(2), out, on_a));
  Error err;
  const Ref<Program> program = Program::build(std::move(p.plan), err);
  CHECK(program);
  if (!program) return;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Ref<Region> x = made(host_device()), y = made(host_device());
      for (int64_t i = 0; i < 100; ++i) {
        set(x, 100 * t);
        const FrameInput inputs[] = {input(x), input(y)};
        Frame frame;
        frame.inputs = inputs;
        frame.input_count = 2;
        frame.ints = &i;
        frame.int_count = 1;
        Error e;
        std::vector<Stamp> ends;
        if (!program->run(frame, nullptr, &ends, e) || !all(y, 100 * t + static_cast<uint64_t>(i) + 3)) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST(program_loops_with_the_trip_in_the_ints) {
  Plan p;
  p.plan.devices = {host_device()};
  p.plan.inputs = {{0, kBytes}};
  p.ints(2);
  const auto io = slot(SlotPlan::input, 0);
  StepPlan loop;
  loop.kind = StepPlan::loop;
  loop.trips = word(1);
  loop.trip = 0;
  loop.body.push_back(Plan::submit(0, p.part(0, 0), io, io));  // io += trip
  p.plan.steps.push_back(std::move(loop));
  Error err;
  const Ref<Program> program = Program::build(std::move(p.plan), err);
  CHECK(program && program->host_only());
  if (!program) return;
  const Ref<Region> x = made(host_device());
  for (const int64_t trips : {0, 1, 10, 1000}) {
    set(x, 5);
    const FrameInput inputs[] = {input(x)};
    const int64_t ints[] = {77, trips};
    Frame frame;
    frame.inputs = inputs;
    frame.input_count = 1;
    frame.ints = ints;
    frame.int_count = 2;
    CHECK(program->run(frame, nullptr, nullptr, err));
    CHECK(all(x, 5 + static_cast<uint64_t>(trips * (trips - 1) / 2)));
  }
}

// spec: R-lost
TEST(program_of_a_closed_device_is_lost_at_its_step) {
  const Ref<Device> a = memory("a");
  Plan p;
  p.plan.devices = {host_device(), a};
  p.plan.inputs = {{1, kBytes}, {1, kBytes}};
  p.plan.steps.push_back(Plan::submit(1, p.part(1), slot(SlotPlan::input, 1), slot(SlotPlan::input, 0)));
  Error err;
  const Ref<Program> program = Program::build(std::move(p.plan), err);
  CHECK(program);
  if (!program) return;
  const Ref<Region> x = made(a), y = made(a);
  const FrameInput inputs[] = {input(x), input(y)};
  Frame frame;
  frame.inputs = inputs;
  frame.input_count = 2;
  CHECK(program->run(frame, nullptr, nullptr, err));
  a->close();
  CHECK(!program->run(frame, nullptr, nullptr, err));
  CHECK(err.code == Code::lost && err.device == "a");
  CHECK(err.message.find("a: the device is lost: it was closed") != std::string::npos);
}

TEST(program_dropped_with_work_in_flight_keeps_its_memory_until_it_is_over) {
  const Ref<Device> a = memory("a", 0.02);
  const uint64_t before = a->in_use();
  const Ref<Region> y = made(host_device());
  {
    Plan p;
    p.plan.devices = {host_device(), a};
    p.plan.inputs = {{0, kBytes}};
    const auto on_a = slot(SlotPlan::memory, p.memory(a)), out = slot(SlotPlan::input, 0);
    p.plan.steps.push_back(Plan::submit(1, p.part(7), on_a, on_a));
    p.plan.steps.push_back(Plan::submit(1, p.part(1), out, on_a));
    Error err;
    Ref<Program> program = Program::build(std::move(p.plan), err);
    CHECK(program);
    if (!program) return;
    const FrameInput inputs[] = {input(y)};
    Frame frame;
    frame.inputs = inputs;
    frame.input_count = 1;
    CHECK(program->run(frame, nullptr, nullptr, err));
  }
  CHECK(a->in_use() == before + kBytes);
  Error err;
  CHECK(y->wait_idle(false, nullptr, err));
  CHECK(reinterpret_cast<uint64_t*>(y->host())[3] == 8);
  for (int i = 0; i < 1000 && a->in_use() != before; ++i) {
    collect_regions();
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
  }
  CHECK(a->in_use() == before);
}
