// Buffer: bytes in a region, as a device sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "module.h"
#include "submit.h"

namespace rig::python {

void require_live(const PyBuffer& b) {
  if (!b.region->live()) raise(Code::invalid, "the buffer is dead: " + b.region->dead_reason());
}

FrameInput frame_input(const PyBuffer& b) {
  return {b.region.get(), b.device.get(), b.offset, b.address, b.nbytes, b.writable};
}

namespace {

// What a region over a Python object's memory gives back: its buffer, once the interpreter's lock is at hand.
struct Pinned {
  Py_buffer buffer{};
  Pinned* next = nullptr;
};
std::atomic<Pinned*> dropped{nullptr};

int drain(void*) {
  Pinned* list = dropped.exchange(nullptr);
  while (list != nullptr) {
    Pinned* next = list->next;
    ++locked_callbacks();  // a finaliser of the object may run here
    PyBuffer_Release(&list->buffer);
    --locked_callbacks();
    delete list;
    list = next;
  }
  return 0;
}

// May run on any thread, with or without the lock.
void drop(void* owner) {
  auto* pinned = static_cast<Pinned*>(owner);
  pinned->next = dropped.load();
  while (!dropped.compare_exchange_weak(pinned->next, pinned)) {
  }
  if (may_use_interpreter()) {
    drain(nullptr);
  } else if (!interpreter_ends()) {
    Py_AddPendingCall(drain, nullptr);
  }
}

PyBuffer window(const Ref<Region>& region) {
  return {region, region->device_ref(), 0, region->nbytes(), region->memory().address, region->writable()};
}

PyBuffer create(const PyDevice& device, int64_t nbytes, int kind) {
  if (nbytes < 0) raise(Code::invalid, "nbytes is " + std::to_string(nbytes) + ", it must not be negative");
  if (kind < 0 || kind > 2) raise(Code::invalid, "kind is " + std::to_string(kind) + ", allowed is DEVICE, PINNED or MAPPED");
  Error err;
  Ref<Region> region = Region::alloc(device.device, static_cast<uint64_t>(nbytes), static_cast<uint32_t>(kind), err);
  if (!region) raise(err);
  return window(region);
}

// One allocation cut into buffers of their own: many small memories cost one call to the system, on huge pages.
std::vector<PyBuffer> create_many(const PyDevice& device, const std::vector<uint64_t>& sizes) {
  constexpr uint64_t kPage = 4096, kMapped = 64 << 10;
  const uint64_t alignment = std::max<uint64_t>(device.device->info().alignment, 64);
  std::vector<uint64_t> offsets;
  uint64_t total = 0;
  for (const uint64_t n : sizes) {
    const uint64_t to = n >= kMapped ? kPage : alignment;
    total = (total + to - 1) / to * to;
    offsets.push_back(total);
    if (__builtin_add_overflow(total, std::max<uint64_t>(n, 1), &total)) total = UINT64_MAX / 2;
  }
  Error err;
  Ref<Region> whole = Region::alloc(device.device, std::max<uint64_t>(total, kMapped), 0, err);
  if (!whole) raise(err);
  std::vector<PyBuffer> out;
  for (size_t i = 0; i < sizes.size(); ++i) out.push_back(window(Region::piece(whole, offsets[i], sizes[i])));
  return out;
}

PyBuffer of(nb::handle object, bool writable) {
  auto pinned = std::make_unique<Pinned>();
  nb::object source = nb::borrow(object);
  if (!PyObject_CheckBuffer(source.ptr()) && nb::hasattr(source, "__dlpack__")) {
    source = nb::module_::import_("numpy").attr("from_dlpack")(source);
  }
  if (PyObject_GetBuffer(source.ptr(), &pinned->buffer, writable ? PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE : PyBUF_C_CONTIGUOUS) != 0) {
    const std::string type = nb::cast<std::string>(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))).attr("__name__"));
    PyErr_Clear();
    raise(Code::invalid, "Buffer.of takes contiguous " + std::string(writable ? "writable " : "") + "memory, this " + type + " is not");
  }
  Pinned* p = pinned.release();
  Ref<Region> region = Region::wrap(host_device(), p->buffer.buf, static_cast<uint64_t>(p->buffer.len), writable && !p->buffer.readonly, p, drop);
  return window(region);
}

PyBuffer view(const PyBuffer& self, int64_t offset, int64_t nbytes) {
  require_live(self);
  if (offset < 0 || nbytes < 0 || static_cast<uint64_t>(offset) > self.nbytes || static_cast<uint64_t>(nbytes) > self.nbytes - static_cast<uint64_t>(offset)) {
    raise(Code::invalid, "a view of " + std::to_string(nbytes) + " bytes at offset " + std::to_string(offset) + " is not within the buffer's " + std::to_string(self.nbytes) + " bytes");
  }
  PyBuffer v = self;
  v.offset += static_cast<uint64_t>(offset);
  v.address += static_cast<uint64_t>(offset);
  v.nbytes = static_cast<uint64_t>(nbytes);
  return v;
}

PyBuffer file(const PyDevice& device, int64_t offset, std::optional<int64_t> nbytes) {
  Error err;
  const Ref<Region> region = device.device->memory();
  if (!region && !device.device->usable(err)) raise(err);
  if (!region) raise(Code::invalid, device.device->name() + " is no file, it is a device of kind " + device.device->info().kind);
  const auto size = static_cast<int64_t>(region->nbytes());
  if (offset < 0 || offset > size) {
    raise(Code::invalid, "offset is " + std::to_string(offset) + ", allowed is 0 to the file's " + std::to_string(size) + " bytes");
  }
  return view(window(region), offset, nbytes.value_or(size - offset));
}

PyBuffer borrow(const PyBuffer& self, const PyDevice& device) {
  require_live(self);
  rig_memory mapped{};
  Error err;
  if (!self.region->map(device.device, mapped, err)) raise(err);
  PyBuffer b = self;
  b.device = device.device;
  b.address = mapped.address + self.offset;
  return b;
}

// Keeps a region's bytes in place while a call works on them: whoever frees them meanwhile, they return after it.
class Pin {
 public:
  explicit Pin(const PyBuffer& b) : region_(b.region) { region_->pin(); }
  ~Pin() { region_->unpin(); }
  Pin(const Pin&) = delete;

 private:
  Ref<Region> region_;
};

// Wait, without the interpreter's lock, for the work that a read or a write must follow. The caller holds a pin.
void settle(const PyBuffer& self, bool for_write) {
  require_live(self);
  PyGate gate;
  Error err;
  const bool ok = self.region->wait_idle(for_write, &gate, err);
  gate.finish();
  if (!ok) raise(err);
  require_live(self);  // another thread may have freed it during the wait
  if (!self.region->device().usable(err)) raise(err);
}

constexpr uint64_t kUnlocked = 1 << 20;

void transfer(const PyBuffer& self, void* bytes, bool into_device) {
  Error err;
  PyGate gate;
  if (self.nbytes > kUnlocked || self.region->host() == nullptr) gate.release();  // a file may be on a slow disk
  const Device& d = self.region->device();
  char why[RIG_WHY] = "";
  const rig_memory& m = self.region->memory();
  const rig_result result = into_device ? d.table()->write(d.state(), &m, self.offset, bytes, self.nbytes, why)
                                        : d.table()->read(d.state(), &m, self.offset, bytes, self.nbytes, why);
  gate.finish();
  if (!d.report(result, why, err)) raise(err);
}

nb::object read(const PyBuffer& self, nb::handle into) {
  const Pin pin(self);
  settle(self, false);
  nb::object target = into.is_none() ? nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(self.nbytes)))
                                     : nb::borrow(into);
  Py_buffer buffer;
  if (PyObject_GetBuffer(target.ptr(), &buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
  if (static_cast<uint64_t>(buffer.len) != self.nbytes) {
    const auto n = buffer.len;
    PyBuffer_Release(&buffer);
    raise(Code::invalid, "reading " + std::to_string(self.nbytes) + " bytes into memory of " + std::to_string(n));
  }
  transfer(self, buffer.buf, false);
  PyBuffer_Release(&buffer);
  return nb::steal(PyMemoryView_FromObject(target.ptr()));
}

void write(const PyBuffer& self, nb::handle data) {
  if (!self.writable) raise(Code::invalid, "the buffer is read-only memory");
  const Pin pin(self);
  settle(self, true);
  Py_buffer buffer;
  if (PyObject_GetBuffer(data.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  if (static_cast<uint64_t>(buffer.len) != self.nbytes) {
    const auto n = buffer.len;
    PyBuffer_Release(&buffer);
    raise(Code::invalid, "writing " + std::to_string(n) + " bytes into a buffer of " + std::to_string(self.nbytes));
  }
  transfer(self, buffer.buf, true);
  PyBuffer_Release(&buffer);
}

PyPoint submit_copy(const PyBuffer& self, const PyBuffer& dst, const nb::sequence& waits) {
  const Pin pins[2] = {Pin(self), Pin(dst)};
  require_live(self);
  require_live(dst);
  if (self.nbytes != dst.nbytes) {
    raise(Code::invalid, "a copy of " + std::to_string(self.nbytes) + " bytes into a buffer of " + std::to_string(dst.nbytes));
  }
  if (!dst.writable) raise(Code::invalid, "the copy's destination is read-only memory");
  if (self.region == dst.region && self.offset < dst.offset + dst.nbytes && dst.offset < self.offset + self.nbytes && self.nbytes != 0) {
    raise(Code::invalid, "the copy's ends overlap: bytes " + std::to_string(self.offset) + " and " + std::to_string(dst.offset) + " of one memory, " + std::to_string(self.nbytes) + " each");
  }
  WaitList list;
  for (const rig_point& p : points_of(waits)) list.add(static_cast<Timeline*>(p.timeline), p.value);
  Stamp point;
  Error err;
  PyGate gate;
  const bool ok = submit_move({self.region, self.offset}, {dst.region, dst.offset}, self.nbytes, list, &gate, point, err);
  gate.finish();
  if (!ok) raise(err);
  return {point.timeline, point.value};
}

bool aligned(const PyBuffer& self, uint64_t align, uint64_t phase) {
  require_live(self);
  if (align == 0 || (align & (align - 1)) != 0) raise(Code::invalid, "align is " + std::to_string(align) + ", it must be a power of two");
  if (phase >= align) raise(Code::invalid, "phase is " + std::to_string(phase) + ", allowed is 0 to align - 1 = " + std::to_string(align - 1));
  return (self.address & (align - 1)) == phase;
}

uint64_t address(const PyBuffer& self) {
  require_live(self);
  if (!self.device->can(RIG_CAN_ADDRESS)) raise(Code::refused, self.device->name() + ": its memory has no address");
  return self.address;
}

uint64_t handle(const PyBuffer& self) {
  raise(Code::refused, self.device->name() + ": its memory has no handle");
}

int get_buffer(PyObject* object, Py_buffer* out, int flags) {
  auto& self = nb::cast<PyBuffer&>(nb::handle(object));
  self.region->lend();
  try {
    settle(self, (flags & PyBUF_WRITABLE) != 0);
    if (self.region->host() == nullptr) raise(Code::refused, self.region->device().name() + ": the host does not address its memory");
  } catch (nb::python_error& e) {
    self.region->unlend();
    e.restore();
    return -1;
  }
  if (PyBuffer_FillInfo(out, object, self.region->host() + self.offset, static_cast<Py_ssize_t>(self.nbytes), self.writable ? 0 : 1, flags) != 0) {
    self.region->unlend();
    return -1;
  }
  return 0;
}

void release_buffer(PyObject* object, Py_buffer*) { nb::cast<PyBuffer&>(nb::handle(object)).region->unlend(); }

// DLPack, as its header lays it out: a tensor of bytes, whose capsule's owner calls the deleter.
struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  uint64_t flags;
  DlTensor tensor;
};
constexpr int32_t kDlCpu = 1;
constexpr uint8_t kDlUint = 1;
constexpr uint64_t kDlReadOnly = 1;

// What an exported tensor keeps: the region, in place, until its consumer is done with it.
struct Exported {
  Ref<Region> region;
  int64_t shape;
  int64_t stride = 1;
  DlManaged plain{};
  DlManagedVersioned versioned{};
  explicit Exported(const Ref<Region>& r, uint64_t n) : region(r), shape(static_cast<int64_t>(n)) { region->lend(); }
  ~Exported() { region->unlend(); }
  Exported(const Exported&) = delete;
};

template <class T>
void delete_exported(T* managed) {
  delete static_cast<Exported*>(managed->context);
}

// A capsule that nobody took still owns its tensor; one that was taken has another name.
template <class T>
void delete_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<T*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

constexpr const char* kPlain = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";

nb::tuple dlpack_device(const PyBuffer& self) {
  require_live(self);
  if (self.region->host() == nullptr) {
    raise(Code::refused, self.region->device().name() + ": the host does not address its memory, DLPack cannot name it");
  }
  return nb::make_tuple(kDlCpu, 0);
}

nb::object dlpack(const PyBuffer& self, nb::handle stream, nb::handle max_version, nb::handle device, nb::handle copy) {
  const nb::tuple own = dlpack_device(self);
  auto buffer_error = [](const char* text) {
    PyErr_SetString(PyExc_BufferError, text);
    return nb::python_error();
  };
  if (!stream.is_none()) throw buffer_error("memory that the host addresses has no streams: stream must be None");
  if (!device.is_none() && !own.equal(device)) throw buffer_error("a Buffer is given on its own device, (1, 0), only");
  if (!copy.is_none() && nb::cast<bool>(copy)) throw buffer_error("a Buffer is given without a copy; its read() makes one");
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  if (!self.writable && !versioned) throw buffer_error("read-only memory needs a consumer of DLPack 1.0, which can say so");
  auto exported = std::make_unique<Exported>(self.region, self.nbytes);
  settle(self, self.writable);
  DlTensor tensor{};
  tensor.data = self.region->host() + self.offset;
  tensor.device = {kDlCpu, 0};
  tensor.ndim = 1;
  tensor.code = kDlUint;
  tensor.bits = 8;
  tensor.lanes = 1;
  tensor.shape = &exported->shape;
  tensor.strides = &exported->stride;
  Exported* e = exported.get();
  PyObject* capsule = nullptr;
  if (versioned) {
    e->versioned = {1, 0, e, &delete_exported<DlManagedVersioned>, self.writable ? 0 : kDlReadOnly, tensor};
    capsule = PyCapsule_New(&e->versioned, kVersioned, [](PyObject* c) { delete_capsule<DlManagedVersioned>(c, kVersioned); });
  } else {
    e->plain = {tensor, e, &delete_exported<DlManaged>};
    capsule = PyCapsule_New(&e->plain, kPlain, [](PyObject* c) { delete_capsule<DlManaged>(c, kPlain); });
  }
  if (capsule == nullptr) throw nb::python_error();
  exported.release();
  return nb::steal(capsule);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};

}  // namespace

void drain_dropped() { drain(nullptr); }

void bind_buffer(nb::module_& m) {
  m.def("create_many", &create_many, nb::arg("host"), nb::arg("sizes"),
        "Make buffers of these sizes on the host in one allocation, which returns once all of them are gone.");
  nb::class_<PyBuffer>(m, "Buffer", nb::type_slots(slots), R"(Bytes in a region of memory, as one device sees them.

Views and borrows of one region share its order, its life and its claims, and keep it. Memory that the host addresses is given
by the buffer protocol too, once the work that wrote it is done.)")
      .def_static("create", &create, nb::arg("device"), nb::arg("nbytes"), nb::kw_only(), nb::arg("kind") = 0,
                  R"(Make memory of `device`: `nbytes` zero bytes or more of `kind` (`rig.Kind`, DEVICE by default).

It starts on the device's alignment, on the host from 64 KiB on a page. Raises Invalid for a negative size, OutOfMemory if it
cannot be made, Lost if the device is lost.)")
      .def_static("of", &of, nb::arg("obj"), nb::kw_only(), nb::arg("writable") = false,
                  nb::sig("def of(obj: object, *, writable: bool = False) -> Buffer"), R"(Name the memory of `obj`, an object with the buffer protocol or DLPack, without a copy.

`obj` is kept until the last work on it is over. Raises Invalid for memory that is not contiguous, or is read-only where
`writable` is asked for.)")
      .def_static("file", &file, nb::arg("device"), nb::arg("offset") = 0, nb::arg("nbytes") = nb::none(),
                  nb::sig("def file(device: Device, offset: int = 0, nbytes: int | None = None) -> Buffer"),
                  R"(Name bytes of the file that `device` is (`rig.file_device`): `nbytes` from `offset`, by default all that follow.

All such buffers lie in one memory: they share its order, its life and its claims, of which none is exclusive, since other
processes reach the file too. Raises Invalid for bytes outside the file and for a device that is no file, Lost once it is closed.)")
      .def_prop_ro("device", [](const PyBuffer& b) { return PyDevice{b.device}; }, "The device that sees the bytes at `address`.")
      .def_prop_ro("nbytes", [](const PyBuffer& b) { return b.nbytes; }, "Its size in bytes.")
      .def_prop_ro("writable", [](const PyBuffer& b) { return b.writable; }, "Whether work may write it.")
      .def_prop_ro("access", [](const PyBuffer& b) { return nb::module_::import_("rig.kinds").attr("Access")(b.writable ? 1 : 0); },
                   nb::sig("def access(self) -> int"), "READ or READ_WRITE; READ memory is never written.")
      .def_prop_ro("_addressed", [](const PyBuffer& b) { return b.region->host() != nullptr; })
      .def_prop_ro("_offset", [](const PyBuffer& b) { return b.offset; })
      .def_prop_ro("_region_nbytes", [](const PyBuffer& b) { return b.region->nbytes(); })
      .def_prop_ro("live", [](const PyBuffer& b) { return b.region->live(); }, "Whether it may be used: not freed and not consumed.")
      .def_prop_ro("address", &address, "The address of its first byte as its device's work sees it.\n\nRaises Refused where memory has a handle only.")
      .def_prop_ro("handle", &handle, "The driver's object.\n\nRaises Refused where there is none, as on the host and on memory devices.")
      .def("view", &view, nb::arg("offset"), nb::arg("nbytes"), "The `nbytes` bytes from `offset`, sharing this memory.\n\nRaises Invalid for bytes outside this buffer.")
      .def("borrow", &borrow, nb::arg("device"), "These bytes as `device` sees them.\n\nRaises Refused where it does not map them.")
      .def("aligned", &aligned, nb::arg("align"), nb::arg("phase") = 0, "Whether its address is `phase` bytes past a multiple of `align`, a power of two.")
      .def("read", &read, nb::arg("into") = nb::none(), nb::sig("def read(self, into: typing_extensions.Buffer | None = None) -> memoryview"),
           "The bytes, copied once the work that writes them is done, into `into` or new memory.\n\nRaises Lost if that work never will be.")
      .def("write", &write, nb::arg("data"), nb::sig("def write(self, data: typing_extensions.Buffer) -> None"),
           "Copy `data`, of exactly `nbytes` bytes, in, once the work that uses these bytes is done.")
      .def("submit_copy", &submit_copy, nb::arg("dst"), nb::kw_only(), nb::arg("waits") = nb::make_tuple(),
           nb::sig("def submit_copy(self, dst: Buffer, *, waits: collections.abc.Sequence[Point] = ()) -> Point"),
           R"(Copy these bytes into `dst`, of the same size, in order with other work on both; gives the point of the copy.

Made by this memory's device if it copies and reaches both, else by the destination's, else by the host, which is done when
this returns. Raises Invalid for other sizes, ends that overlap and read-only memory.)")
      .def("free", [](const PyBuffer& b) { b.region->free_now("it was freed"); },
           "End every buffer over this memory; the bytes return once the work on them is over.")
      .def("_hold", [](const PyBuffer& b) { Error err; if (!b.region->hold(err)) raise(err); })
      .def("_unhold", [](const PyBuffer& b) { b.region->unhold(); })
      .def("_exclude", [](const PyBuffer& b) {
             if (b.nbytes != b.region->nbytes()) raise(Code::invalid, "an exclusive claim needs the whole memory of " + std::to_string(b.region->nbytes()) + " bytes, this buffer has " + std::to_string(b.nbytes));
             Error err;
             if (!b.region->exclude(err)) raise(err);
           })
      .def("_unexclude", [](const PyBuffer& b) { b.region->unexclude(); })
      .def("_consume", [](const PyBuffer& b, const std::string& why) {
             Error err;
             Ref<Region> heir = b.region->consume(why, err);
             if (!heir) raise(err);
             return window(heir);
           }, nb::arg("why"))
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, "
                   "copy: bool | None = None) -> typing.Any"),
           R"(Give these bytes, a 1-d array of uint8 in host memory, as a DLPack capsule, once the work that uses them is done.

The memory stays in place until the consumer is done with it. Raises BufferError for what cannot be had: a copy, another
device, read-only memory for a consumer of DLPack before 1.0; Refused for memory that the host does not address.)")
      .def("__dlpack_device__", &dlpack_device, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
           "Give DLPack's name of the host's memory, (1, 0).\n\nRaises Refused for memory that the host does not address.")
      .def("__len__", [](const PyBuffer& b) { return b.nbytes; })
      .def("__repr__", [](const PyBuffer& b) {
        return "<rig.Buffer of " + std::to_string(b.nbytes) + " bytes on " + b.device->name() + (b.region->live() ? "" : ", dead") + ">";
      });
}

}  // namespace rig::python
