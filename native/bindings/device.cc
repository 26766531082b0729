// Device: this process's host, and memory devices.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "file/file.h"
#include "host_info.h"
#include "module.h"
#include "opencl/opencl.h"
#include "pool.h"
#include "region.h"

namespace rig::python {
namespace {

PyDevice host(std::optional<uint32_t> threads) {
  if (threads) {
    if (*threads < 1 || *threads > 4096) raise(Code::invalid, "threads is " + std::to_string(*threads) + ", allowed is 1 to 4096");
    set_host_threads(*threads);
  }
  return {host_device()};
}

PyDevice memory_device(const std::string& name, std::optional<uint64_t> nbytes, uint64_t alignment, bool borrows, bool copies,
                       double delay, std::optional<int64_t> fail_at) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 4096) {
    raise(Code::invalid, "alignment is " + std::to_string(alignment) + ", allowed is a power of two up to 4096");
  }
  if (!(delay >= 0 && delay < 3600)) raise(Code::invalid, "delay is " + std::to_string(delay) + " s, allowed is 0 to 3600");
  if (fail_at && *fail_at < 1) raise(Code::invalid, "fail_at is " + std::to_string(*fail_at) + ", submissions are numbered from 1");
  MemoryDeviceOptions options;
  options.name = name;
  options.nbytes = nbytes.value_or(UINT64_MAX);
  options.alignment = alignment;
  options.borrows = borrows;
  options.copies = copies;
  options.delay = delay;
  options.fail_at = fail_at.value_or(0);
  Ref<Device> device = make_memory_device(options);
  if (!device) raise(Code::refused, name + ": the system gives no thread for its queue");
  return {device};
}

PyDevice file_device(const std::string& name, int fd, uint64_t nbytes, bool writable) {
  Ref<Device> device = make_file_device({name, fd, writable, nbytes});
  if (!device) raise(Code::refused, name + ": the system gives no thread for its queue");
  return {device};
}

std::pair<std::vector<std::string>, std::string> opencl_devices() {
  PyGate gate;
  gate.release();  // the first call starts the platforms
  std::pair<std::vector<std::string>, std::string> out;
  out.first = opencl_found(out.second);
  gate.finish();
  return out;
}

PyDevice opencl_device(const std::string& name, uint32_t index, int memory, int64_t fail_at) {
  Error err;
  PyGate gate;
  gate.release();
  const Ref<Device> device = make_opencl_device({index, name, static_cast<OpenClMemory>(memory), fail_at}, err);
  gate.finish();
  if (!device) raise(err);
  return {device};
}

void close(const PyDevice& self) {
  if (self.device->is_host()) raise(Code::invalid, "host: this process's host cannot be closed");
  PyGate gate;
  gate.release();
  self.device->close();
  gate.finish();
}

uint64_t memory_in_use(const PyDevice& self) {
  collect_regions();
  return self.device->in_use();
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<PyDevice>(m, "Device", R"(Memory and, mostly, a processor: this process's host, a memory device, or a file.

A device's work is one sequence of submissions numbered 1, 2, ...: its timeline. Devices compare equal if they are the same.
Get one from `rig.host`, `rig.memory_device` or `rig.file_device`. As a context manager it closes at the end of the block.)")
      .def_prop_ro("name", [](const PyDevice& d) { return d.device->name(); }, "The name that messages give.")
      .def_prop_ro("kind", [](const PyDevice& d) { return std::string(d.device->info().kind); },
                   "The driver's kind: \"host\", \"memory\", \"file\", \"opencl\".")
      .def_prop_ro("arch", [](const PyDevice& d) { return std::string(d.device->info().arch); },
                   "What its code is compiled for: x86-64-v1 to x86-64-v4, arm64 with its sorted features, or opencl-c with its version and features; empty for a file.")
      .def_prop_ro("instruction_set", [](const PyDevice& d) { return std::string(d.device->info().instruction_set); },
                   "x86_64 or arm64; empty where work is no host code.")
      .def_prop_ro("alignment", [](const PyDevice& d) { return d.device->info().alignment; },
                   "The bytes on whose multiples its memory starts.")
      .def_prop_ro("cache_bytes",
                   [](const PyDevice& d) -> std::optional<uint64_t> {
                     const uint64_t n = d.device->info().cache_bytes;
                     return n == 0 ? std::nullopt : std::optional<uint64_t>(n);
                   },
                   "The bytes of the last-level cache, or None where the system does not state them.")
      .def_prop_ro("cores", [](const PyDevice& d) { return d.device->can(RIG_CAN_HOST_CODE) ? usable_cores() : d.device->info().cores; },
                   "The cores that this process may use, by its affinity mask and its control group's quota; of an accelerator its own; 0 for a file.")
      .def_prop_ro("threads", [](const PyDevice&) { return host_threads(); },
                   "The number of threads that launches on the host are split over.")
      .def_prop_ro("runs_on_host", [](const PyDevice& d) { return d.device->can(RIG_CAN_HOST_CODE); },
                   "Whether its work is host code.")
      .def_prop_ro("borrows", [](const PyDevice& d) { return d.device->can(RIG_CAN_BORROW); },
                   "Whether it maps host memory and memory that the host addresses.")
      .def_prop_ro("copies", [](const PyDevice& d) { return d.device->can(RIG_CAN_COPY); }, "Whether copies are work of it.")
      .def_prop_ro("host", [](const PyDevice&) { return PyDevice{host_device()}; }, "Its machine's host.")
      .def_prop_ro("lost", [](const PyDevice& d) { return d.device->timeline().lost(); },
                   "Whether it is gone for good: failed, closed, or left behind by a fork.")
      .def_prop_ro("submitted", [](const PyDevice& d) { return d.device->timeline().submitted(); },
                   "The number of submissions made so far.")
      .def_prop_ro("memory_in_use", &memory_in_use, "The bytes of its memory that are allocated now.")
      .def_prop_ro("budget",
                   [](const PyDevice& d) -> std::optional<uint64_t> {
                     return d.device->budget() == UINT64_MAX ? std::nullopt : std::optional<uint64_t>(d.device->budget());
                   },
                   "The most bytes that may be in use, or None.")
      .def("set_budget", [](const PyDevice& d, std::optional<uint64_t> nbytes) { d.device->set_budget(nbytes.value_or(UINT64_MAX)); },
           nb::arg("nbytes").none(),
           "Limit the bytes in use to `nbytes`, or not at all for None.\n\nWhat is in use stays; an allocation over it is OutOfMemory.")
      .def("close", &close,
           "End the device after its work; later uses of it and of its memory are Lost.\n\nClosing twice does nothing. The host cannot be closed: Invalid.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Device"))
      .def("__exit__", [](const PyDevice& d, nb::args) { close(d); }, nb::sig("def __exit__(self, *exc: object) -> None"))
      .def("__eq__", [](const PyDevice& a, nb::handle b) { return nb::isinstance<PyDevice>(b) && nb::cast<const PyDevice&>(b).device == a.device; }, nb::arg("other").none())
      .def("__hash__", [](const PyDevice& d) { return reinterpret_cast<size_t>(d.device.get()) >> 4; })
      .def("__repr__", [](const PyDevice& d) { const rig_device_info& i = d.device->info(); return "<rig.Device " + d.device->name() + ", " + (i.arch[0] ? i.arch : i.kind) + ">"; });
  m.def("host", &host, nb::arg("threads") = nb::none(), "This process's host; `threads` sets how many threads launches are split over.");
  m.def("memory_device", &memory_device, nb::arg("name"), nb::arg("nbytes"), nb::arg("alignment"), nb::arg("borrows"),
        nb::arg("copies"), nb::arg("delay"), nb::arg("fail_at"), "Open a memory device; see rig.memory_device.");
  m.def("file_device", &file_device, nb::arg("name"), nb::arg("fd"), nb::arg("nbytes"), nb::arg("writable"),
        "Make a device of an open file, which it closes; see rig.file_device.");
  m.def("opencl_devices", &opencl_devices, "The names of the OpenCL devices found, and why there are none; looked up at the first call.");
  m.def("opencl_device", &opencl_device, nb::arg("name"), nb::arg("index"), nb::arg("memory"), nb::arg("fail_at"),
        "Open an OpenCL device; see rig.drivers.opencl.");
  m.def("pool_workers", &pool_workers, "The number of threads that the host's pool has made.");
  m.def("arch_runs", &arch_runs, nb::arg("have"), nb::arg("need"), "Whether a machine of arch `have` runs code compiled for `need`.");
}

}  // namespace rig::python
