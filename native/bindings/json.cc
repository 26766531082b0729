// JSON as Python objects: what an artifact's small members are read with, without importing a decoder.
#include <cstdint>
#include <cstring>
#include <string>

#include "module.h"
#include "scan.h"

namespace {

// Reads one value from left to right. Returns a null object with `fault` set where the text is no JSON.
class JsonReader {
 public:
  JsonReader(const char* text, size_t size, uint32_t max_depth) : begin_(text), at_(text), end_(text + size), left_(max_depth) {}

  nb::object whole() {
    nb::object value = this->value();
    if (fault == nullptr) {
      space();
      if (at_ != end_) fail("something follows the value");
    }
    return fault == nullptr ? value : nb::object();
  }

  const char* fault = nullptr;
  size_t position = 0;

 private:
  nb::object fail(const char* why) {
    if (fault == nullptr) {
      fault = why;
      position = static_cast<size_t>(at_ - begin_);
    }
    return {};
  }

  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  bool next_is(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  bool word(const char* text) {
    const size_t size = strlen(text);
    if (static_cast<size_t>(end_ - at_) < size || memcmp(at_, text, size) != 0) return false;
    at_ += size;
    return true;
  }

  nb::object value() {
    space();
    if (at_ == end_) return fail("the text ends where a value is expected");
    switch (*at_) {
      case '{': return object();
      case '[': return array();
      case '"': return string();
      case 't': if (word("true")) return nb::borrow(Py_True); break;
      case 'f': if (word("false")) return nb::borrow(Py_False); break;
      case 'n': if (word("null")) return nb::none(); break;
      default:
        if (*at_ == '-' || digit()) return number();
    }
    return fail("no value starts so");
  }

  nb::object object() {
    if (left_ == 0) return fail("values are nested too deep");
    --left_;
    ++at_;
    nb::dict out;
    if (!next_is('}')) {
      do {
        space();
        if (at_ == end_ || *at_ != '"') return fail("a name in quotes is expected");
        nb::object name = string();
        if (fault == nullptr && !next_is(':')) fail("a colon is expected");
        if (fault != nullptr) return {};
        nb::object item = value();
        if (fault != nullptr) return {};
        if (PyDict_SetItem(out.ptr(), name.ptr(), item.ptr()) != 0) throw nb::python_error();
      } while (next_is(','));
      if (!next_is('}')) return fail("a comma or a closing brace is expected");
    }
    ++left_;
    return out;
  }

  nb::object array() {
    if (left_ == 0) return fail("values are nested too deep");
    --left_;
    ++at_;
    nb::list out;
    if (!next_is(']')) {
      do {
        nb::object item = value();
        if (fault != nullptr) return {};
        out.append(item);
      } while (next_is(','));
      if (!next_is(']')) return fail("a comma or a closing bracket is expected");
    }
    ++left_;
    return out;
  }

  bool digit() const { return at_ != end_ && *at_ >= '0' && *at_ <= '9'; }

  bool digits() {
    if (!digit()) return false;
    while (digit()) ++at_;
    return true;
  }

  nb::object number() {
    const char* const start = at_;
    bool whole = true;
    if (*at_ == '-') ++at_;
    if (at_ != end_ && *at_ == '0') {
      ++at_;
    } else if (!digits()) {
      return fail("a digit is expected");
    }
    if (at_ != end_ && *at_ == '.') {
      whole = false;
      ++at_;
      if (!digits()) return fail("a digit is expected");
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      whole = false;
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!digits()) return fail("a digit is expected");
    }
    if (whole && at_ - start <= 18) {
      int64_t n = 0;
      for (const char* c = *start == '-' ? start + 1 : start; c != at_; ++c) n = n * 10 + (*c - '0');
      return nb::steal(PyLong_FromLongLong(*start == '-' ? -n : n));
    }
    if (at_ - start > kLongest) return fail("a number has too many digits");
    const std::string text(start, at_);
    if (whole) return made(PyLong_FromString(text.c_str(), nullptr, 10));
    const double n = PyOS_string_to_double(text.c_str(), nullptr, PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return fail("a number is past what a float holds");
    }
    return nb::steal(PyFloat_FromDouble(n));
  }

  nb::object string() {
    const char* const start = ++at_;
    while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= 0x20) ++at_;
    if (at_ != end_ && *at_ == '"') return text(start, static_cast<size_t>(at_++ - start));
    std::string out(start, at_);
    while (at_ != end_ && *at_ != '"') {
      if (static_cast<uint8_t>(*at_) < 0x20) return fail("a control character stands in a string");
      if (*at_ != '\\') {
        out += *at_++;
      } else if (!escape(out)) {
        return {};
      }
    }
    if (at_ == end_) return fail("the text ends inside a string");
    ++at_;
    return text(out.data(), out.size());
  }

  // Text that is not UTF-8 is a fault of the string that ends here.
  nb::object text(const char* data, size_t size) {
    if (!rig::is_utf8(reinterpret_cast<const uint8_t*>(data), size)) return fail("a string is not UTF-8");
    return made(PyUnicode_DecodeUTF8(data, static_cast<Py_ssize_t>(size), nullptr));
  }

  bool escape(std::string& out) {
    constexpr char kFrom[] = "\"\\/bfnrt";
    constexpr char kTo[] = "\"\\/\b\f\n\r\t";
    ++at_;
    const char c = at_ == end_ ? '\0' : *at_;
    const char* const found = c == '\0' ? nullptr : strchr(kFrom, c);
    if (found != nullptr) {
      ++at_;
      out += kTo[found - kFrom];
      return true;
    }
    uint32_t code = 0;
    if (!unit(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (at_ == end_ || *at_ != '\\') return fail("half of a surrogate pair stands alone").is_valid();
      ++at_;
      if (!unit(low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return fail("half of a surrogate pair stands alone").is_valid();
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      return fail("half of a surrogate pair stands alone").is_valid();
    }
    append(out, code);
    return true;
  }

  // The four digits after \u.
  bool unit(uint32_t& code) {
    if (at_ == end_ || *at_ != 'u') return fail("no such escape").is_valid();
    ++at_;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ == end_ ? '\0' : *at_;
      const char low = static_cast<char>(c | 0x20);
      const int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
      if (digit < 0) return fail("four hexadecimal digits are expected").is_valid();
      code = (code << 4) | static_cast<uint32_t>(digit);
    }
    return true;
  }

  static void append(std::string& out, uint32_t code) {
    const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6);
      put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    }
  }

  static nb::object made(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
  }

  static constexpr ptrdiff_t kLongest = 300;

  const char* begin_;
  const char* at_;
  const char* end_;
  uint32_t left_;  // levels
};

// Deeper than any member of an artifact, and no danger to the stack.
constexpr uint32_t kDepth = 64;

nb::object read_json(nb::handle data) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::string text(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
  PyBuffer_Release(&buffer);
  JsonReader reader(text.data(), text.size(), kDepth);
  nb::object value = reader.whole();
  if (reader.fault != nullptr) rig::python::raise_format_error(reader.fault, "byte " + std::to_string(reader.position));
  return value;
}

}  // namespace

void bind_json(nb::module_& m) {
  m.def("read_json", &read_json, nb::arg("data"), nb::sig("def read_json(data: typing_extensions.Buffer) -> object"),
        "Return the JSON value that `data` holds as dicts, lists, strings, numbers, booleans and None.\n\n"
        "Of a name that an object has twice the last value counts. Raises FormatError with the byte for what is no JSON.");
}
