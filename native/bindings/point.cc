// Point and StepPoints.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>

#include "module.h"

namespace rig::python {
namespace {

bool wait(const PyPoint& self, std::optional<double> timeout) {
  if (timeout && std::isnan(*timeout)) raise(Code::invalid, "timeout is nan, it takes seconds or None");
  PyGate gate;
  const int64_t ns = timeout ? static_cast<int64_t>(std::min(std::max(*timeout, 0.0), 1e9) * 1e9) : -1;
  const Reach r = self.timeline->wait(self.value, ns, &gate);
  gate.finish();
  if (r == Reach::interrupted) throw nb::python_error();
  if (r == Reach::lost) {
    Error err;
    lost_error(*self.timeline, self.value, err);
    raise(err);
  }
  return r == Reach::reached;
}

bool reached(const PyPoint& self) {
  const Reach r = self.timeline->wait(self.value, 0, nullptr);
  if (r == Reach::lost) {
    Error err;
    lost_error(*self.timeline, self.value, err);
    raise(err);
  }
  return r == Reach::reached;
}

PyPoint at(const PyStepPoints& self, Py_ssize_t i) {
  const auto n = static_cast<Py_ssize_t>(self.points.size());
  if (i < 0) i += n;
  if (i < 0 || i >= n) throw nb::index_error(("step point " + std::to_string(i) + " of " + std::to_string(n)).c_str());
  return {self.points[static_cast<size_t>(i)].timeline, self.points[static_cast<size_t>(i)].value};
}

}  // namespace

void bind_point(nb::module_& m) {
  nb::class_<PyPoint>(m, "Point", R"(A point of completion: a value on a device's timeline.

It is reached once every submission of the device up to the value is over. A host's point is reached from the start.)")
      .def_prop_ro("device", [](const PyPoint& p) { return p.timeline->device(); }, "The name of its device.")
      .def_prop_ro("value", [](const PyPoint& p) { return p.value; }, "The number of the submission on its device.")
      .def_prop_ro("reached", &reached, "Whether the work up to it is over.\n\nRaises Lost if it never will be, or if its work was not done.")
      .def("wait", &wait, nb::arg("timeout") = nb::none(), R"(Wait until it is reached, at most `timeout` seconds (no bound for None).

Returns whether it was reached. Other threads go on meanwhile; Ctrl-C ends the wait. Raises Lost if its device is lost before
it is reached, or if its work was not done because something that it waited for was lost.)")
      .def("__eq__", [](const PyPoint& a, nb::handle b) {
             if (!nb::isinstance<PyPoint>(b)) return false;
             const auto& o = nb::cast<const PyPoint&>(b);
             return o.timeline == a.timeline && o.value == a.value;
           }, nb::arg("other").none())
      .def("__hash__", [](const PyPoint& p) { return (reinterpret_cast<size_t>(p.timeline) >> 4) ^ p.value; })
      .def("__repr__", [](const PyPoint& p) { return "<rig.Point " + p.timeline->device() + " " + std::to_string(p.value) + ">"; });
  nb::class_<PyStepPoints>(m, "StepPoints", R"(Where a run reports each Submit step's point: a sequence, made once and reused.

One element per Submit step in the order of the steps, a loop's body counted once. A step that a run did not reach holds the
host's shared reached point afterwards.)")
      .def("__len__", [](const PyStepPoints& s) { return s.points.size(); })
      .def("__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); },
           nb::sig("def __iter__(self) -> collections.abc.Iterator[Point]"))
      .def("__getitem__", &at, nb::arg("index"));
}

}  // namespace rig::python
