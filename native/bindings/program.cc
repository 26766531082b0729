// A loaded program and what runs it again and again.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "plan_reader.h"

namespace rig::python {
namespace {

// A frame prepared once; its buffers are pinned until it goes.
struct PyBound {
  Ref<Program> program;
  std::vector<PyBuffer> buffers;
  std::vector<FrameInput> inputs;
  std::vector<int64_t> ints;

  PyBound() = default;
  PyBound(const PyBound&) = delete;
  ~PyBound() {
    for (const PyBuffer& b : buffers) b.region->unpin();
  }
};

Region* region_in(nb::handle buffer) { return nb::cast<const PyBuffer&>(buffer).region.get(); }

PyProgram build(nb::handle description, const nb::list& devices, const nb::list& memory, const nb::list& images,
                const nb::list& ints, bool shared) {
  ProgramPlan plan;
  Error err;
  bind_plan(plan, devices, memory, images, ints, shared);
  for (nb::handle in : nb::cast<nb::tuple>(description.attr("inputs"))) {
    plan.inputs.push_back({nb::cast<uint32_t>(in.attr("device")), nb::cast<uint64_t>(in.attr("nbytes"))});
  }
  plan.ints = nb::cast<uint64_t>(description.attr("ints"));
  const std::vector<Ref<Image>> keep = plan.images;
  PlanReader reader(keep, plan, err);
  if (!reader.read_steps(nb::object(description.attr("steps")))) raise(err);
  Ref<Program> program = Program::build(std::move(plan), err);
  if (!program) raise(err);
  return {program};
}

nb::tuple ends_of(const std::vector<Stamp>& ends) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(ends.size())));
  for (size_t i = 0; i < ends.size(); ++i) {
    PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), nb::cast(PyPoint{ends[i].timeline, ends[i].value}).release().ptr());
  }
  return nb::borrow<nb::tuple>(out);
}

void run_frame(Program& program, Frame& frame, std::vector<Stamp>* ends) {
  if (locked_callbacks() > 0) refuse_in_callback("a run");
  Error err;
  PyGate gate;
  if (program.long_by_estimate()) gate.release();
  const bool ok = program.run(frame, &gate, ends, err);
  gate.finish();
  if (!ok) raise(err);
}

int64_t word_of(nb::handle h, size_t i) {
  const long long n = PyLong_AsLongLong(h.ptr());
  if (n == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    raise(Code::invalid, "int " + std::to_string(i) + " of the frame is " + std::string(nb::repr(h).c_str()) + ", allowed is a signed 64-bit integer");
  }
  return n;
}

PyBuffer& buffer_in(nb::handle h, size_t i) {
  if (!nb::isinstance<PyBuffer>(h)) {
    raise(Code::invalid, "input " + std::to_string(i) + " of the frame is " + std::string(nb::repr(h).c_str()) + ", it takes a Buffer");
  }
  return nb::cast<PyBuffer&>(h);
}

nb::tuple run(const PyProgram& self, const nb::sequence& inputs, const nb::sequence& ints, nb::handle points, const nb::sequence& waits) {
  std::vector<FrameInput> in;
  std::vector<PyBuffer> keep;  // the frame's list may change during the run
  std::vector<int64_t> words;
  for (nb::handle h : inputs) keep.push_back(buffer_in(h, keep.size()));
  for (const PyBuffer& b : keep) in.push_back(frame_input(b));
  for (nb::handle h : ints) words.push_back(word_of(h, words.size()));
  const std::vector<rig_point> list = points_of(waits);
  Frame frame;
  frame.inputs = in.data();
  frame.input_count = in.size();
  frame.ints = words.data();
  frame.int_count = words.size();
  frame.waits = list.data();
  frame.wait_count = list.size();
  if (!points.is_none()) {
    if (!nb::isinstance<PyStepPoints>(points)) {
      raise(Code::invalid, "the frame's step points are " + std::string(nb::repr(points).c_str()) +
                               ", what step_points() of its program makes is allowed");
    }
    auto& p = nb::cast<PyStepPoints&>(points);
    if (p.points.size() != self.program->submit_steps()) {
      raise(Code::invalid, "the frame has " + std::to_string(p.points.size()) + " step points, the program has " +
                               std::to_string(self.program->submit_steps()) + " Submit steps");
    }
    frame.step_points = p.points.data();
  }
  std::vector<Stamp> ends;
  run_frame(*self.program, frame, &ends);
  return ends_of(ends);
}

nb::tuple pause(const PyProgram& self) {
  Error err;
  PyGate gate;
  std::vector<Stamp> last;
  const bool ok = self.program->pause(&gate, last, err);
  gate.finish();
  if (!ok) raise(err);
  std::vector<Stamp> ends;
  for (const Stamp& s : last) {
    if (s.timeline && s.value) ends.push_back(s);
  }
  return ends_of(ends);
}

PyStepPoints step_points(const PyProgram& self) {
  const Ref<Device> host = host_device();
  return {std::vector<Stamp>(self.program->submit_steps(), Stamp{&host->timeline(), 0})};
}

PyBound* bind(const PyProgram& self, const nb::sequence& inputs, const nb::sequence& ints) {
  auto bound = std::make_unique<PyBound>();
  bound->program = self.program;
  for (nb::handle h : inputs) {
    const PyBuffer& b = buffer_in(h, bound->buffers.size());
    b.region->pin();
    bound->buffers.push_back(b);
  }
  for (const PyBuffer& b : bound->buffers) bound->inputs.push_back(frame_input(b));
  for (nb::handle h : ints) bound->ints.push_back(word_of(h, bound->ints.size()));
  return bound.release();
}

void run_bound(PyBound& self, std::vector<Stamp>* ends) {
  Frame frame;
  frame.inputs = self.inputs.data();
  frame.input_count = self.inputs.size();
  frame.ints = self.ints.data();
  frame.int_count = self.ints.size();
  frame.pinned = true;
  run_frame(*self.program, frame, ends);
}

void set_ints(PyBound& self, const nb::sequence& ints) {
  std::vector<int64_t> words;
  for (nb::handle h : ints) words.push_back(word_of(h, words.size()));
  self.ints = std::move(words);
}

}  // namespace

void bind_plan(ProgramPlan& plan, const nb::list& devices, const nb::list& memory, const nb::list& images, const nb::list& ints,
               bool shared) {
  for (nb::handle d : devices) plan.devices.push_back(nb::cast<const PyDevice&>(d).device);
  for (nb::handle copies : memory) {
    const auto list = nb::cast<nb::list>(copies);
    MemoryPlan m;
    m.two = list.size() == 2;
    m.shared = shared;
    m.copies[0] = Ref<Region>(region_in(list[0]));
    m.copies[1] = m.two ? Ref<Region>(region_in(list[1])) : m.copies[0];
    plan.memory.push_back(m);
  }
  for (nb::handle i : images) plan.images.push_back(nb::cast<const PyImage&>(i).image);
  for (size_t i = 0; i < ints.size() && i < 2; ++i) plan.int_copies[i] = Ref<Region>(region_in(ints[i]));
}

void bind_program(nb::module_& m) {
  nb::class_<PyProgram>(m, "Program", "A built program; use it through rig.program.Loaded.")
      .def("run", &run, nb::arg("inputs"), nb::arg("ints"), nb::arg("step_points").none(), nb::arg("waits"),
           nb::sig("def run(self, inputs: collections.abc.Sequence[Buffer], ints: collections.abc.Sequence[int], step_points: StepPoints | None, "
                   "waits: collections.abc.Sequence[Point]) -> tuple[Point, ...]"))
      .def("step_points", &step_points)
      .def("bind", &bind, nb::arg("inputs"), nb::arg("ints"), nb::rv_policy::take_ownership,
           nb::sig("def bind(self, inputs: collections.abc.Sequence[Buffer], ints: collections.abc.Sequence[int]) -> Bound"))
      .def_prop_ro("submit_steps", [](const PyProgram& p) { return p.program->submit_steps(); })
      .def_prop_ro("host_only", [](const PyProgram& p) { return p.program->host_only(); })
      .def("memory_written", [](const PyProgram& p, size_t i) { return p.program->memory_written(i); }, nb::arg("index"))
      .def("pause", &pause, nb::sig("def pause(self) -> tuple[Point, ...]"),
           "Keep runs out until resume() on this thread, and give the last point of all runs on each device.")
      .def("resume", [](const PyProgram& p) {
             if (!p.program->resume()) raise(Code::invalid, "this thread holds no pause of the program");
           }, "Let runs in again.")
      .def("input_written", [](const PyProgram& p, size_t i) { return p.program->input_written(i); }, nb::arg("index"));
  m.def("build_program", &build, nb::arg("description"), nb::arg("devices"), nb::arg("memory"), nb::arg("images"), nb::arg("ints"),
        nb::arg("shared"),
        nb::sig("def build_program(description: object, devices: list[Device], memory: list[list[Buffer]], images: list[Image], ints: "
                "list[Buffer], shared: bool) -> Program"),
        "Build a checked description over the memory and images that load made.");
  nb::class_<PyBound>(m, "Bound", R"(A program with the buffers of its runs given once.

Each run checks the buffers anew and costs little more than its kernels.)")
      .def("run", [](PyBound& b) { run_bound(b, nullptr); },
           "Run the program once. Work on devices other than the host may still run when this returns.")
      .def("submit", [](PyBound& b) {
             std::vector<Stamp> ends;
             run_bound(b, &ends);
             return ends_of(ends);
           }, nb::sig("def submit(self) -> tuple[Point, ...]"), "Run the program once and give its ends.")
      .def("set_ints", &set_ints, nb::arg("ints"), nb::sig("def set_ints(self, ints: collections.abc.Sequence[int]) -> None"),
           "Set the first words of the ints that later runs start with.");
}

}  // namespace rig::python
