// Functions over plain bytes: a checksum, a read into place, and the scan that goes before decoding.
#include <nanobind/nanobind.h>

#include <cerrno>
#include <string>

#include "crc32c.h"
#include "file_read.h"
#include "module.h"
#include "scan.h"

namespace {

// Work on more bytes than this runs without the interpreter's lock.
constexpr size_t kUnlocked = size_t{1} << 20;

Py_buffer buffer_of(nb::handle object, int flags) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, flags) != 0) throw nb::python_error();
  return buffer;
}

// The three below hold nothing that needs a destructor while the lock is released: a daemon thread may end there.

uint32_t crc_unlocked(const void* data, size_t size, uint32_t seed) {
  PyThreadState* const state = size > kUnlocked ? PyEval_SaveThread() : nullptr;
  const uint32_t crc = rig::crc32c(data, size, seed);
  if (state != nullptr) PyEval_RestoreThread(state);
  return crc;
}

rig::FileRead read_unlocked(int fd, uint64_t offset, void* into, size_t size) {
  PyThreadState* const state = size > kUnlocked ? PyEval_SaveThread() : nullptr;
  const rig::FileRead result = rig::read_file(fd, offset, into, size);
  if (state != nullptr) PyEval_RestoreThread(state);
  return result;
}

rig::ScanFault scan_unlocked(const void* data, size_t size, uint32_t max_depth) {
  PyThreadState* const state = size > kUnlocked ? PyEval_SaveThread() : nullptr;
  const rig::ScanFault fault = rig::scan_msgpack(static_cast<const uint8_t*>(data), size, max_depth);
  if (state != nullptr) PyEval_RestoreThread(state);
  return fault;
}

uint32_t crc32c(nb::handle data, uint32_t seed) {
  Py_buffer buffer = buffer_of(data, PyBUF_SIMPLE);
  const uint32_t crc = crc_unlocked(buffer.buf, static_cast<size_t>(buffer.len), seed);
  PyBuffer_Release(&buffer);
  return crc;
}

uint32_t read_into(int fd, uint64_t file_offset, nb::handle into) {
  Py_buffer buffer = buffer_of(into, PyBUF_WRITABLE);
  const auto size = static_cast<size_t>(buffer.len);
  const rig::FileRead result = read_unlocked(fd, file_offset, buffer.buf, size);
  PyBuffer_Release(&buffer);
  if (result.error != 0) {
    errno = result.error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  if (result.size < size) {
    rig::python::raise_format_error("the file ends after " + std::to_string(result.size) + " of " + std::to_string(size) +
                           " bytes from byte " + std::to_string(file_offset),
                       "byte " + std::to_string(file_offset + result.size));
  }
  return result.crc;
}

nb::object scan_msgpack(nb::handle data, uint32_t max_depth) {
  Py_buffer buffer = buffer_of(data, PyBUF_SIMPLE);
  const rig::ScanFault fault = scan_unlocked(buffer.buf, static_cast<size_t>(buffer.len), max_depth);
  PyBuffer_Release(&buffer);
  if (fault.reason == nullptr) return nb::none();
  return nb::make_tuple(fault.position, fault.reason);
}

// The first byte that is not zero between an end and the next multiple of `alignment`, for each end.
nb::object nonzero_gap(nb::handle data, nb::list ends, size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) throw nb::value_error("alignment is a power of two");
  Py_buffer buffer = buffer_of(data, PyBUF_SIMPLE);
  const auto* const bytes = static_cast<const uint8_t*>(buffer.buf);
  const auto size = static_cast<size_t>(buffer.len);
  size_t found = size;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ends.ptr()) && found == size; ++i) {
    size_t at = PyLong_AsSize_t(PyList_GET_ITEM(ends.ptr(), i));
    if (PyErr_Occurred() != nullptr) break;
    while (at < size && (at & (alignment - 1)) != 0 && bytes[at] == 0) ++at;
    if (at < size && (at & (alignment - 1)) != 0) found = at;
  }
  PyBuffer_Release(&buffer);
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return found == size ? nb::none() : nb::cast(found);
}

}  // namespace

void bind_bytes(nb::module_& m) {
  m.def("crc32c", &crc32c, nb::arg("data"), nb::arg("seed") = 0,
        nb::sig("def crc32c(data: typing_extensions.Buffer, seed: int = 0) -> int"),
        "Return the CRC-32C of `data`; `seed` is the value of the bytes before it.");
  m.def("read_into", &read_into, nb::arg("fd"), nb::arg("file_offset"), nb::arg("into"),
        nb::sig("def read_into(fd: int, file_offset: int, into: typing_extensions.Buffer) -> int"),
        "Fill the writable buffer `into` from byte `file_offset` of the open file `fd`; return the CRC-32C of its bytes.\n\n"
        "Raises FormatError if the file ends before the buffer is full, OSError if a read fails.");
  m.def("scan_msgpack", &scan_msgpack, nb::arg("data"), nb::arg("max_depth"),
        nb::sig("def scan_msgpack(data: typing_extensions.Buffer, max_depth: int) -> tuple[int, str] | None"),
        "Check that `data` is exactly one MessagePack object of nil, 64-bit integers, UTF-8 strings and arrays in shortest form.\n\n"
        "Returns None, or the position of the first fault and its reason. Allocates nothing by the lengths that it reads.");
  m.def("nonzero_gap", &nonzero_gap, nb::arg("data"), nb::arg("ends"), nb::arg("alignment"),
        nb::sig("def nonzero_gap(data: typing_extensions.Buffer, ends: list[int], alignment: int) -> int | None"),
        "Return the position of the first byte that is not zero between one of `ends` and the next multiple of `alignment`.\n\n"
        "None if there is none. `alignment` is a power of two.");
}
