// Image and Function.
#include <nanobind/stl/string.h>

#include "module.h"

namespace rig::python {
namespace {

PyImage load(const PyDevice& device, nb::handle binary) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(binary.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  PyGate gate;
  gate.release();
  Error err;
  Ref<Image> image = Image::load(device.device, static_cast<const uint8_t*>(buffer.buf), static_cast<uint64_t>(buffer.len), err);
  gate.finish();
  PyBuffer_Release(&buffer);
  if (!image) raise(err);
  return {image};
}

PyFunction resolve(const PyImage& self, const std::string& name) {
  PyFunction f{self.image, name, {}};
  Error err;
  if (!self.image->resolve(name, f.function, err)) raise(err);
  return f;
}

}  // namespace

void bind_image(nb::module_& m) {
  nb::class_<PyFunction>(m, "Function", "A function of an image; it keeps the image loaded.")
      .def_prop_ro("name", [](const PyFunction& f) { return f.name; }, "Its name in the image.")
      .def_prop_ro("image", [](const PyFunction& f) { return PyImage{f.image}; }, "The image that it is of.")
      .def_prop_ro("entry", [](const PyFunction& f) { return f.function.entry; },
                   "What compiled code calls it by: for host code, its address.")
      .def_prop_ro("max_threads", [](const PyFunction& f) { return f.function.max_threads; },
                   "The most threads a group may have, 0 for no limit.");
  nb::class_<PyImage>(m, "Image", R"(Compiled code loaded on a device: for host code a flat image or a shared library.

It is unloaded once nothing names it and the work that uses it is over.)")
      .def_static("load", &load, nb::arg("device"), nb::arg("binary"),
                  nb::sig("def load(device: Device, binary: typing_extensions.Buffer) -> Image"),
                  "Load `binary`, code in the device's format.\n\nRaises Refused, starting with the device's name, for bytes that are no image, "
                  "code that needs more than the machine has, and imports that are not given to images.")
      .def_prop_ro("device", [](const PyImage& i) { return PyDevice{i.image->device_ref()}; }, "The device it is loaded on.")
      .def("resolve", &resolve, nb::arg("name"), "The function of that name.\n\nRaises Refused if the image has none.");
}

}  // namespace rig::python
