#include "plan_reader.h"

#include <nanobind/stl/string.h>

namespace rig::python {
namespace {

// Attributes and classes by interned name; they live as long as the process.
struct Names {
  nb::handle address, entry, fixed, word, submit, move, loop, launch, copy, fill, memory_slot, input_slot;
  PyObject *a_memory, *a_on, *a_image, *a_name, *a_value, *a_index, *a_factor, *a_at, *a_width, *a_terms, *a_add, *a_shift,
      *a_bytes, *a_holes, *a_slot, *a_use, *a_src, *a_src_offset, *a_dst, *a_dst_offset, *a_length, *a_params, *a_refs,
      *a_groups, *a_threads, *a_shared, *a_device, *a_parts, *a_slots, *a_fixed, *a_trips, *a_body, *a_trip, *a_flag, *a_fill,
      *a_view, *a_offset;
};

const Names& names() {
  static const Names* n = [] {
    auto* r = new Names();
    nb::object d = nb::module_::import_("rig.program.description");
    const auto type = [&](const char* name) { return nb::object(d.attr(name)).release(); };
    r->address = type("Address");
    r->entry = type("Entry");
    r->fixed = type("Fixed");
    r->word = type("Int");
    r->submit = type("Submit");
    r->move = type("Move");
    r->loop = type("Loop");
    r->launch = type("Launch");
    r->copy = type("Copy");
    r->fill = type("Fill");
    r->memory_slot = type("MemorySlot");
    r->input_slot = type("InputSlot");
    const auto name = [](const char* text) { return PyUnicode_InternFromString(text); };
#define RIG_NAME(x) r->a_##x = name(#x)
    RIG_NAME(memory); RIG_NAME(on); RIG_NAME(image); RIG_NAME(name); RIG_NAME(value); RIG_NAME(index); RIG_NAME(factor);
    RIG_NAME(at); RIG_NAME(width); RIG_NAME(terms); RIG_NAME(add); RIG_NAME(shift); RIG_NAME(bytes); RIG_NAME(holes);
    RIG_NAME(slot); RIG_NAME(use); RIG_NAME(src); RIG_NAME(src_offset); RIG_NAME(dst); RIG_NAME(dst_offset);
    RIG_NAME(length); RIG_NAME(params); RIG_NAME(refs); RIG_NAME(groups); RIG_NAME(threads); RIG_NAME(shared);
    RIG_NAME(device); RIG_NAME(parts); RIG_NAME(slots); RIG_NAME(fixed); RIG_NAME(trips); RIG_NAME(body); RIG_NAME(trip);
    RIG_NAME(flag); RIG_NAME(fill); RIG_NAME(view); RIG_NAME(offset);
#undef RIG_NAME
    return r;
  }();
  return *n;
}

bool is(nb::handle object, nb::handle type) { return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type.ptr(); }

nb::object get(nb::handle object, PyObject* name) {
  PyObject* v = PyObject_GetAttr(object.ptr(), name);
  if (v == nullptr) throw nb::python_error();
  return nb::steal(v);
}

int64_t get_int(nb::handle object, PyObject* name) {
  PyObject* v = PyObject_GetAttr(object.ptr(), name);
  if (v == nullptr) throw nb::python_error();
  const long long n = PyLong_AsLongLong(v);
  Py_DECREF(v);
  if (n == -1 && PyErr_Occurred()) throw nb::python_error();
  return n;
}

template <typename F>
bool each(nb::handle tuple, F f) {
  const Py_ssize_t n = PyTuple_Size(tuple.ptr());
  if (n < 0) throw nb::python_error();
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!f(nb::handle(PyTuple_GET_ITEM(tuple.ptr(), i)), static_cast<size_t>(i))) return false;
  }
  return true;
}

}  // namespace

bool PlanReader::resolve(int64_t image, nb::handle name, Function& out) {
  return images_[static_cast<size_t>(image)]->resolve(nb::cast<std::string>(name), out, err_);
}

bool PlanReader::read_value(nb::handle value, ValuePlan& out) {
  const Names& n = names();
  if (is(value, n.fixed)) {
    out = {ValuePlan::fixed, get_int(value, n.a_value), 0};
  } else if (is(value, n.word)) {
    out = {ValuePlan::word, get_int(value, n.a_index), 0};
  } else if (is(value, n.address)) {
    out = {ValuePlan::address, get_int(value, n.a_memory), get_int(value, n.a_on)};
  } else if (is(value, n.entry)) {
    Function f;
    if (!resolve(get_int(value, n.a_image), get(value, n.a_name), f)) return false;
    out = {ValuePlan::fixed, static_cast<int64_t>(f.entry), 0};
  } else {
    return err_.set(Code::refused, "no device here has handles or rails, which a value names");
  }
  return true;
}

bool PlanReader::read_terms(nb::handle terms, std::vector<TermPlan>& out) {
  return each(terms, [&](nb::handle term, size_t) {
    TermPlan t;
    if (!read_value(get(term, names().a_value), t.value)) return false;
    t.factor = get_int(term, names().a_factor);
    out.push_back(t);
    return true;
  });
}

bool PlanReader::read_data(nb::handle data, DataPlan& out) {
  const Names& n = names();
  nb::object bytes = get(data, n.a_bytes);
  if (PyBytes_CheckExact(bytes.ptr())) {
    out.bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(bytes.ptr()));
    out.size = static_cast<uint64_t>(PyBytes_GET_SIZE(bytes.ptr()));
  } else {
    // A view of bytes that the description keeps: its pointer outlives this export.
    Py_buffer buffer;
    if (PyObject_GetBuffer(bytes.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    out.bytes = static_cast<const uint8_t*>(buffer.buf);
    out.size = static_cast<uint64_t>(buffer.len);
    PyBuffer_Release(&buffer);
  }
  return each(get(data, n.a_holes), [&](nb::handle hole, size_t) {
    HolePlan h;
    h.at = get_int(hole, n.a_at);
    h.width = static_cast<int>(get_int(hole, n.a_width));
    h.add = get_int(hole, n.a_add);
    h.shift = static_cast<int>(get_int(hole, n.a_shift));
    if (!read_terms(get(hole, n.a_terms), h.terms)) return false;
    out.holes.push_back(std::move(h));
    return true;
  });
}

bool PlanReader::read_slot(nb::handle slot, SlotPlan& out) {
  const Names& n = names();
  if (is(slot, n.memory_slot)) {
    nb::object view = get(slot, n.a_view);
    out = {SlotPlan::memory, static_cast<uint32_t>(get_int(view, n.a_memory)), static_cast<uint64_t>(get_int(view, n.a_offset)),
           static_cast<uint64_t>(get_int(view, n.a_length))};
  } else if (is(slot, n.input_slot)) {
    const auto i = static_cast<uint32_t>(get_int(slot, n.a_index));
    out = {SlotPlan::input, i, 0, plan_.inputs[i].nbytes};
  } else {
    out = {SlotPlan::ints, 0, 0, plan_.ints * 8};
  }
  return true;
}

bool PlanReader::read_refs(nb::handle refs, std::vector<RefPlan>& out) {
  const Names& n = names();
  out.reserve(static_cast<size_t>(PyTuple_GET_SIZE(refs.ptr())));
  return each(refs, [&](nb::handle ref, size_t) {
    out.push_back({static_cast<uint32_t>(get_int(ref, n.a_slot)), static_cast<uint64_t>(get_int(ref, n.a_at)),
                   static_cast<Use>(get_int(ref, n.a_use))});
    return true;
  });
}

bool PlanReader::read_launch(nb::handle part, PartPlan& out) {
  const Names& n = names();
  out.kind = RIG_LAUNCH;
  if (!resolve(get_int(part, n.a_image), get(part, n.a_name), out.function)) return false;
  if (!read_data(get(part, n.a_params), out.params) || !read_refs(get(part, n.a_refs), out.refs)) return false;
  const auto triple = [&](PyObject* name, ValuePlan* to) {
    return each(get(part, name), [&](nb::handle v, size_t i) { return read_value(v, to[i]); });
  };
  return triple(n.a_groups, out.geometry) && triple(n.a_threads, out.geometry + 3) && read_value(get(part, n.a_shared), out.geometry[6]);
}

bool PlanReader::read_part(nb::handle part, PartPlan& out) {
  const Names& n = names();
  if (is(part, n.launch)) return read_launch(part, out);
  if (is(part, n.copy)) {
    out.kind = RIG_COPY;
    out.src.slot = static_cast<uint32_t>(get_int(part, n.a_src));
    out.dst.slot = static_cast<uint32_t>(get_int(part, n.a_dst));
    out.length = static_cast<uint64_t>(get_int(part, n.a_length));
    return read_terms(get(part, n.a_src_offset), out.src.offset) && read_terms(get(part, n.a_dst_offset), out.dst.offset);
  }
  if (is(part, n.fill)) {
    out.kind = RIG_FILL;
    ValuePlan f;
    if (!read_value(get(part, n.a_fill), f)) return false;
    out.function.entry = static_cast<uint64_t>(f.a);
    return read_data(get(part, n.a_params), out.params) && read_refs(get(part, n.a_refs), out.refs);
  }
  out.kind = RIG_WORDS;
  return true;
}

bool PlanReader::read_submit(nb::handle step, StepPlan& out) {
  const Names& n = names();
  out.kind = StepPlan::submit;
  out.device = static_cast<uint32_t>(get_int(step, n.a_device));
  nb::object parts = get(step, n.a_parts);
  out.parts.resize(static_cast<size_t>(PyTuple_GET_SIZE(parts.ptr())));
  if (!each(parts, [&](nb::handle part, size_t i) {
        if (read_part(part, out.parts[i])) return true;
        err_.message = path_ + ".parts[" + std::to_string(i) + "]: " + err_.message;
        return false;
      })) {
    return false;
  }
  each(get(step, n.a_slots), [&](nb::handle slot, size_t) { return read_slot(slot, out.slots.emplace_back()); });
  return each(get(step, n.a_fixed), [&](nb::handle pair, size_t) {
    FixedPlan f;
    nb::handle view(PyTuple_GET_ITEM(pair.ptr(), 0));
    f.view = {SlotPlan::memory, static_cast<uint32_t>(get_int(view, n.a_memory)), static_cast<uint64_t>(get_int(view, n.a_offset)),
              static_cast<uint64_t>(get_int(view, n.a_length))};
    f.writes = nb::cast<int>(nb::handle(PyTuple_GET_ITEM(pair.ptr(), 1))) != 0;
    out.fixed.push_back(f);
    return true;
  });
}

bool PlanReader::read_step(nb::handle step, StepPlan& out) {
  const Names& n = names();
  if (is(step, n.submit)) return read_submit(step, out);
  if (is(step, n.move)) {
    out.kind = StepPlan::move;
    out.slots.resize(2);
    out.src.slot = 0;
    out.dst.slot = 1;
    out.length = static_cast<uint64_t>(get_int(step, n.a_length));
    return read_slot(get(step, n.a_src), out.slots[0]) && read_slot(get(step, n.a_dst), out.slots[1]) &&
           read_terms(get(step, n.a_src_offset), out.src.offset) && read_terms(get(step, n.a_dst_offset), out.dst.offset);
  }
  out.kind = StepPlan::loop;
  if (!read_value(get(step, n.a_trips), out.trips)) {
    err_.message = path_ + ".trips: " + err_.message;
    return false;
  }
  nb::object trip = get(step, n.a_trip);
  if (!trip.is_none()) out.trip = nb::cast<int64_t>(trip);
  nb::object flag = get(step, n.a_flag);
  if (!flag.is_none()) {
    read_slot(nb::handle(PyTuple_GET_ITEM(flag.ptr(), 0)), out.slots.emplace_back());
    out.flag_at = nb::cast<int64_t>(nb::handle(PyTuple_GET_ITEM(flag.ptr(), 1)));
  }
  const std::string path = path_;
  nb::object body = get(step, n.a_body);
  out.body.resize(static_cast<size_t>(PyTuple_GET_SIZE(body.ptr())));
  return each(body, [&](nb::handle s, size_t i) {
    path_ = path + ".body[" + std::to_string(i) + "]";
    return read_step(s, out.body[i]);
  });
}

bool PlanReader::read_steps(nb::handle steps) {
  plan_.steps.resize(static_cast<size_t>(PyTuple_Size(steps.ptr())));
  return each(steps, [&](nb::handle step, size_t i) {
    path_ = "steps[" + std::to_string(i) + "]";
    return read_step(step, plan_.steps[i]);
  });
}

}  // namespace rig::python
