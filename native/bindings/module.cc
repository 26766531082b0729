// The module: errors, the gate between the core and the interpreter, and what happens at exit.
#include "module.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>

#include "fork.h"
#include "futex.h"

namespace rig::python {
namespace {

// Threads may be in native code while the interpreter ends; taking its lock then would end the thread in the middle of
// C++ frames. From `ending` on, only the thread that ends the interpreter takes the lock.
std::atomic<bool> ending{false};
std::atomic<uint32_t> taking{0};
std::atomic<uint64_t> ender{0};

constexpr int64_t kDrain = 2'000'000'000;  // for work in flight at exit

void take_interpreter(PyThreadState* state) {
  taking.fetch_add(1, std::memory_order_seq_cst);
  if (ending.load(std::memory_order_seq_cst) && ender.load() != static_cast<uint64_t>(pthread_self())) {
    taking.fetch_sub(1, std::memory_order_seq_cst);
    for (;;) pause();
  }
  PyEval_RestoreThread(state);
  taking.fetch_sub(1, std::memory_order_seq_cst);
}

// The threads that were on their way stayed in the parent.
void forget_takers() { taking.store(0, std::memory_order_relaxed); }

const char* class_of(Code code) {
  switch (code) {
    case Code::refused: return "Refused";
    case Code::out_of_memory: return "OutOfMemory";
    case Code::lost: return "Lost";
    default: return "Invalid";
  }
}

}  // namespace

void raise(const Error& err) {
  if (err.code == Code::interrupted && PyErr_Occurred()) throw nb::python_error();
  nb::object type = nb::module_::import_("rig.errors").attr(class_of(err.code));
  nb::object value;
  if (err.code == Code::out_of_memory) {
    value = type(err.message, err.device, err.nbytes);
  } else if (err.code == Code::lost) {
    value = type(err.message, err.device, err.step >= 0 ? nb::cast(err.step) : nb::none());
  } else {
    value = type(err.message);
  }
  PyErr_SetObject(type.ptr(), value.ptr());
  throw nb::python_error();
}

void raise(Code code, const std::string& message) {
  Error err;
  err.set(code, message);
  raise(err);
}

void raise_format_error(const std::string& message, const std::string& where) {
  nb::object type = nb::module_::import_("rig.errors").attr("FormatError");
  nb::object value = type(message, where);
  PyErr_SetObject(type.ptr(), value.ptr());
  throw nb::python_error();
}

void PyGate::release() {
  if (saved_ == nullptr) saved_ = PyEval_SaveThread();
}

void PyGate::finish() {
  if (saved_ != nullptr) take_interpreter(std::exchange(saved_, nullptr));
}

bool PyGate::poll() {
  if (getpid() != gettid()) return true;  // signals are the main thread's
  const bool released = saved_ != nullptr;
  finish();
  const bool go_on = PyErr_CheckSignals() == 0;
  if (released && go_on) release();
  return go_on;
}

bool interpreter_ends() { return ending.load(std::memory_order_seq_cst); }

bool may_use_interpreter() {
  if (interpreter_ends() && ender.load() != static_cast<uint64_t>(pthread_self())) return false;
  return PyGILState_Check() != 0;
}

int& locked_callbacks() {
  thread_local int depth = 0;
  return depth;
}

void refuse_in_callback(const char* what) {
  if (locked_callbacks() > 0) {
    raise(Code::invalid, std::string(what) + " was called from a callback that rig makes while it holds a lock of its own");
  }
}

std::vector<rig_point> points_of(const nb::sequence& points) {
  std::vector<rig_point> out;
  for (nb::handle h : points) {
    if (!nb::isinstance<PyPoint>(h)) {
      raise(Code::invalid, "wait " + std::to_string(out.size()) + " is " + std::string(nb::repr(h).c_str()) + ", it takes a Point");
    }
    const auto& p = nb::cast<const PyPoint&>(h);
    out.push_back({p.timeline, p.value});
  }
  return out;
}

// Let every device finish, within a bound; what is left then is left behind.
static void at_exit(const nb::list& devices) {
  ender.store(static_cast<uint64_t>(pthread_self()));
  ending.store(true, std::memory_order_seq_cst);
  std::vector<Ref<Device>> all;
  for (nb::handle h : devices) all.push_back(nb::cast<const PyDevice&>(h).device);
  PyThreadState* state = PyEval_SaveThread();
  const int64_t deadline = now_ns() + kDrain;
  for (const Ref<Device>& d : all) {
    const int64_t left = deadline - now_ns();
    d->timeline().wait(d->timeline().submitted(), left > 0 ? left : 0, nullptr);
  }
  while (taking.load(std::memory_order_seq_cst) != 0 && now_ns() < deadline) usleep(200);
  PyEval_RestoreThread(state);
}

}  // namespace rig::python

NB_MODULE(_core, m) {
  using namespace rig::python;
  m.doc() = "The native core of rig; use it through the package rig.";
  nb::set_leak_warnings(false);
  rig::on_fork_child(forget_takers);
  bind_bytes(m);
  bind_json(m);
  bind_device(m);
  bind_point(m);
  bind_image(m);
  bind_buffer(m);
  bind_program(m);
  bind_packed(m);
  m.def("refuse_in_callback", &refuse_in_callback, nb::arg("what"),
        "Raise Invalid on a thread that is in a callback which rig makes while it holds a lock of its own.");
  m.def("at_exit", &at_exit, nb::arg("devices"), nb::sig("def at_exit(devices: list[Device]) -> None"),
        "Wait, within a bound, for the work of `devices` as the interpreter ends.");
}
