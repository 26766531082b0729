// Programs' bytes that are loaded without a description.
#include <nanobind/stl/string.h>

#include <memory>

#include "module.h"
#include "packed.h"

namespace rig::python {
namespace {

// A packed program and the bytes that it points into.
class PyPacked {
 public:
  explicit PyPacked(nb::handle data) : data_(nb::borrow(data)) {
    if (PyObject_GetBuffer(data.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  PyPacked(const PyPacked&) = delete;
  PyPacked& operator=(const PyPacked&) = delete;
  ~PyPacked() { PyBuffer_Release(&buffer_); }

  bool read() { return read_packed(static_cast<const uint8_t*>(buffer_.buf), static_cast<size_t>(buffer_.len), program); }

  // A blob as a part of the bytes, not a copy; None if it is empty.
  nb::object blob(const Packed::Blob& blob) const {
    if (blob.size == 0) return nb::none();
    const size_t at = static_cast<size_t>(blob.bytes - static_cast<const uint8_t*>(buffer_.buf));
    return nb::make_tuple(at, at + blob.size);
  }

  Packed program;

 private:
  nb::object data_;
  Py_buffer buffer_{};
};

nb::object read(nb::handle data) {
  auto packed = std::make_unique<PyPacked>(data);
  if (!packed->read()) return nb::none();
  return nb::cast(packed.release(), nb::rv_policy::take_ownership);
}

nb::list devices(const PyPacked& p) {
  nb::list out;
  for (const std::string_view arch : p.program.devices) out.append(nb::str(arch.data(), arch.size()));
  return out;
}

nb::list memory(const PyPacked& p) {
  nb::list out;
  for (const Packed::Memory& m : p.program.memory) out.append(nb::make_tuple(p.blob(m.init), m.device, m.nbytes, m.copies, m.kind));
  return out;
}

nb::list images(const PyPacked& p) {
  nb::list out;
  for (const Packed::Code& c : p.program.images) out.append(nb::make_tuple(p.blob(c.binary), c.device));
  return out;
}

nb::list inputs(const PyPacked& p) {
  nb::list out;
  for (const InputPlan& i : p.program.inputs) out.append(nb::make_tuple(i.device, i.nbytes));
  return out;
}

nb::list written(const PyPacked& p) {
  nb::list out;
  const std::vector<bool> found = p.program.written();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) out.append(i);
  }
  return out;
}

nb::list host_code(const PyPacked& p) {
  nb::list out;
  for (const uint32_t device : p.program.host_code) out.append(device);
  return out;
}

PyProgram build(PyPacked& p, const nb::list& devices, const nb::list& memory, const nb::list& images, const nb::list& ints) {
  Packed& program = p.program;
  if (program.built) raise(Code::invalid, "a packed program is built once");
  program.built = true;
  Error err;
  ProgramPlan plan;
  bind_plan(plan, devices, memory, images, ints, false);
  plan.inputs = program.inputs;
  plan.ints = program.ints;
  if (!program.resolve(plan.images, err)) raise(err);
  plan.steps = std::move(program.steps);
  Ref<Program> built = Program::build(std::move(plan), err);
  if (!built) raise(err);
  return {built};
}

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<PyPacked>(m, "Packed", "A program's bytes, decoded and checked natively; use it through rig.program.packed.")
      .def_static("read", &read, nb::arg("data"), nb::sig("def read(data: typing_extensions.Buffer) -> Packed | None"),
                  "Read a program's bytes, which must not change; None, without a reason, for what it does not take.")
      .def_prop_ro("devices", &devices, nb::sig("def devices(self) -> list[str]"))
      .def_prop_ro("memory", &memory,
                   nb::sig("def memory(self) -> list[tuple[tuple[int, int] | None, int, int, int, int]]"),
                   "Of each memory where its init lies, its device, bytes, copies and kind.")
      .def_prop_ro("images", &images, nb::sig("def images(self) -> list[tuple[tuple[int, int] | None, int]]"),
                   "Of each image where it lies, and its device.")
      .def_prop_ro("inputs", &inputs, nb::sig("def inputs(self) -> list[tuple[int, int]]"), "Of each input its device and bytes.")
      .def_prop_ro("ints", [](const PyPacked& p) { return p.program.ints; })
      .def_prop_ro("host_code", &host_code, nb::sig("def host_code(self) -> list[int]"), "The devices whose images fills call.")
      .def_prop_ro("built", [](const PyPacked& p) { return p.program.built; }, "Whether its steps are used up.")
      .def("written", &written, nb::sig("def written(self) -> list[int]"), "The memory that a run may write.")
      .def("build", &build, nb::arg("devices"), nb::arg("memory"), nb::arg("images"), nb::arg("ints"),
           nb::sig("def build(self, devices: list[Device], memory: list[list[Buffer]], images: list[Image], ints: list[Buffer]) -> Program"),
           "Build the program over the memory and images that load made; once, since its steps are used up.");
}

}  // namespace rig::python
