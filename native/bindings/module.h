// What the bindings share: errors as exceptions, the interpreter's lock as a gate, and the handles of the nouns.
#pragma once

#include <nanobind/nanobind.h>

#include "image.h"
#include "program.h"

namespace nb = nanobind;

void bind_bytes(nb::module_& m);
void bind_json(nb::module_& m);

namespace rig::python {

// Set the exception of rig.errors that err stands for, and throw it.
[[noreturn]] void raise(const Error& err);
[[noreturn]] void raise(Code code, const std::string& message);
[[noreturn]] void raise_format_error(const std::string& message, const std::string& where);

// Gives the interpreter's lock up before a wait, and looks at signals on the main thread. finish() must be called on
// every way out: it takes the lock again, and must not run in a destructor, since a thread may end in it.
class PyGate : public Gate {
 public:
  void release() override;
  bool poll() override;
  void finish();

 private:
  PyThreadState* saved_ = nullptr;
};

// Whether this thread holds the interpreter's lock, and whether the interpreter ends: then only the thread that ends it
// may touch Python objects.
bool may_use_interpreter();
bool interpreter_ends();

// The depth of Python code that rig calls while it holds a lock of its own, on this thread.
int& locked_callbacks();
// Refuse what must not be called from such code.
void refuse_in_callback(const char* what);

struct PyDevice {
  Ref<Device> device;
};

struct PyPoint {
  Timeline* timeline = nullptr;
  uint64_t value = 0;
};

// A window on a region as a device sees it.
struct PyBuffer {
  Ref<Region> region;
  Ref<Device> device;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
  uint64_t address = 0;
  bool writable = true;
};

struct PyProgram {
  Ref<Program> program;
};

struct PyImage {
  Ref<Image> image;
};

struct PyFunction {
  Ref<Image> image;
  std::string name;
  Function function;
};

struct PyStepPoints {
  std::vector<Stamp> points;
};

// Fill in what a load made for a plan: devices, memory, images and the copies of the ints.
void bind_plan(ProgramPlan& plan, const nb::list& devices, const nb::list& memory, const nb::list& images, const nb::list& ints,
               bool shared);
// Throws Invalid if the buffer is dead.
void require_live(const PyBuffer& buffer);
FrameInput frame_input(const PyBuffer& buffer);
// Points as the core takes them; `keep` holds them until the call is over.
std::vector<rig_point> points_of(const nb::sequence& points);

void bind_device(nb::module_& m);
void bind_point(nb::module_& m);
void bind_buffer(nb::module_& m);
void bind_image(nb::module_& m);
void bind_program(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_call(nb::module_& m);
void drain_dropped();

}  // namespace rig::python
