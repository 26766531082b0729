#include "packed.h"

#include <algorithm>
#include <cstring>

#include "crc32c.h"
#include "scan.h"

namespace rig {
namespace {

constexpr uint64_t kSize = 64;  // of the preamble, and what blobs are aligned to
constexpr uint32_t kVersion = 1;
constexpr char kMagic[] = "\x93RIGPRG\n";

constexpr uint64_t aligned(uint64_t at) { return (at + kSize - 1) & ~(kSize - 1); }

template <typename T>
T little(const uint8_t* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

bool zeros(const uint8_t* data, uint64_t from, uint64_t to) {
  return std::all_of(data + from, data + to, [](uint8_t b) { return b == 0; });
}

// Goes over MessagePack that scan_msgpack passed, object by object; false where the next one is of another kind.
class Cursor {
 public:
  Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  bool array(uint64_t& count) {
    const uint8_t head = peek();
    if ((head & 0xF0) == 0x90) {
      count = head & 0x0F;
      ++at_;
      return true;
    }
    return head == 0xDC ? number(2, count) : head == 0xDD && number(4, count);
  }

  bool array_of(uint64_t wanted) {
    uint64_t count = 0;
    return array(count) && count == wanted;
  }

  bool integer(int64_t& value) {
    const uint8_t head = peek();
    if (at_ == end_) return false;
    if (head <= 0x7F || head >= 0xE0) {
      value = static_cast<int8_t>(head);
      ++at_;
      return true;
    }
    uint64_t bits = 0;
    if (head >= 0xCC && head <= 0xCF) {
      if (!number(size_t{1} << (head - 0xCC), bits)) return false;
    } else if (head >= 0xD0 && head <= 0xD3) {
      const size_t width = size_t{1} << (head - 0xD0);
      if (!number(width, bits)) return false;
      const unsigned unused = 64U - 8U * static_cast<unsigned>(width);
      value = static_cast<int64_t>(bits << unused) >> unused;
      return true;
    } else {
      return false;
    }
    value = static_cast<int64_t>(bits);
    return value >= 0;
  }

  // An integer from 0 to `past` - 1.
  template <typename T>
  bool below(uint64_t past, T& out) {
    int64_t value = 0;
    if (!integer(value) || value < 0 || static_cast<uint64_t>(value) >= past) return false;
    out = static_cast<T>(value);
    return true;
  }

  bool text(std::string_view& out) {
    const uint8_t head = peek();
    uint64_t size = head & 0x1F;
    if ((head & 0xE0) == 0xA0) {
      ++at_;
    } else if (head < 0xD9 || head > 0xDB || !number(size_t{1} << (head - 0xD9), size)) {
      return false;
    }
    if (size > static_cast<uint64_t>(end_ - at_)) return false;
    out = {reinterpret_cast<const char*>(at_), static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  bool nil() {
    if (peek() != 0xC0) return false;
    ++at_;
    return true;
  }

  bool done() const { return at_ == end_; }

 private:
  uint8_t peek() const { return at_ == end_ ? 0xC1 : *at_; }

  // The big-endian number of `width` bytes behind the next one.
  bool number(size_t width, uint64_t& out) {
    if (static_cast<size_t>(end_ - at_) <= width) return false;
    ++at_;
    out = 0;
    for (size_t i = 0; i < width; ++i) out = (out << 8) | *at_++;
    return true;
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

class Reader {
 public:
  Reader(const uint8_t* data, size_t size, Packed& out) : data_(data), size_(size), p_(out) {}

  bool read() {
    if (!preamble()) return false;
    if (scan_msgpack(data_ + kSize, body_end_ - kSize, kMaxScanDepth).reason != nullptr) return false;
    in_ = Cursor(data_ + kSize, data_ + body_end_);
    return in_.array_of(6) && devices() && memory() && images() && inputs() && in_.below(INT64_MAX / 8 + 1, p_.ints) &&
           steps(p_.steps, 0) && in_.done() && end_ == size_;
  }

 private:
  static constexpr uint64_t kAny = uint64_t{INT64_MAX} + 1;  // past every integer that is not negative
  static constexpr uint64_t kReserve = 4096;

  bool preamble() {
    if (size_ < kSize || memcmp(data_, kMagic, 8) != 0 || little<uint32_t>(data_ + 8) != kVersion) return false;
    const auto total = little<uint64_t>(data_ + 16), body = little<uint64_t>(data_ + 24);
    if (total != size_ || body > size_ - kSize) return false;
    body_end_ = kSize + body;
    base_ = end_ = aligned(body_end_);
    if (base_ > size_ || little<uint64_t>(data_ + 32) != base_ || !zeros(data_, 40, kSize)) return false;
    constexpr uint8_t none[4] = {};
    const uint32_t crc = crc32c(data_ + 16, size_ - 16, crc32c(none, 4, crc32c(data_, 12)));
    return crc == little<uint32_t>(data_ + 12) && zeros(data_, body_end_, base_);
  }

  // Each element of an array; `each` reads one into what `out` gets.
  template <typename T, typename F>
  bool list(std::vector<T>& out, F each) {
    uint64_t count = 0;
    if (!in_.array(count)) return false;
    out.reserve(std::min<uint64_t>(count, kReserve));  // an element may be much larger than its encoding
    for (uint64_t i = 0; i < count; ++i) {
      if (!each(out.emplace_back())) return false;
    }
    return true;
  }

  // Blobs lie in the order in which they are named, each at the next multiple of 64; an empty one is [0, 0].
  bool blob(Packed::Blob& out) {
    uint64_t offset = 0, length = 0;
    if (!in_.array_of(2) || !in_.below(kAny, offset) || !in_.below(kAny, length)) return false;
    if (length == 0) return offset == 0;
    const uint64_t at = aligned(end_);
    if (at > size_ || offset != at - base_ || length > size_ - at || !zeros(data_, end_, at)) return false;
    out = {data_ + at, length};
    end_ = at + length;
    return true;
  }

  // Bytes without holes: filling those is left to the description.
  bool plain(Packed::Blob& out) { return in_.array_of(2) && blob(out) && in_.array_of(0); }

  bool devices() {
    return list(p_.devices, [&](std::string_view& arch) { return in_.text(arch); });
  }

  bool memory() {
    return list(p_.memory, [&](Packed::Memory& m) {
      int64_t tag = 0;
      if (!in_.array_of(6) || !in_.integer(tag) || tag != 0) return false;
      if (!in_.below(p_.devices.size(), m.device) || !in_.below(kAny, m.nbytes) || !plain(m.init)) return false;
      return m.init.size <= m.nbytes && in_.below(3, m.copies) && m.copies != 0 && in_.below(3, m.kind);
    });
  }

  bool images() {
    return list(p_.images, [&](Packed::Code& c) {
      return in_.array_of(2) && in_.below(p_.devices.size(), c.device) && plain(c.binary);
    });
  }

  bool inputs() {
    return list(p_.inputs, [&](InputPlan& i) {
      return in_.array_of(2) && in_.below(p_.devices.size(), i.device) && in_.below(kAny, i.nbytes);
    });
  }

  bool entry(ValuePlan& out) {
    uint64_t image = 0;
    if (!in_.below(p_.images.size(), image)) return false;
    out = {ValuePlan::entry, static_cast<int64_t>(image), static_cast<int64_t>(p_.names.size())};
    return in_.text(p_.names.emplace_back());
  }

  bool value(ValuePlan& out) {
    uint64_t count = 0;
    int64_t tag = 0;
    if (!in_.array(count) || !in_.integer(tag)) return false;
    switch (tag) {
      case 0:
        out.kind = ValuePlan::address;
        return count == 3 && in_.below(p_.memory.size(), out.a) && in_.below(p_.devices.size(), out.b);
      case 2: return count == 3 && entry(out);
      case 4: out.kind = ValuePlan::fixed; return count == 2 && in_.integer(out.a);
      case 5: out.kind = ValuePlan::word; return count == 2 && in_.below(p_.ints, out.a);
      default: return false;  // handles and rails
    }
  }

  bool terms(std::vector<TermPlan>& out) {
    return list(out, [&](TermPlan& t) { return in_.array_of(2) && value(t.value) && in_.integer(t.factor); });
  }

  bool params(DataPlan& out) {
    Packed::Blob bytes;
    if (!in_.array_of(2) || !blob(bytes)) return false;
    out.bytes = bytes.bytes;
    out.size = bytes.size;
    return list(out.holes, [&](HolePlan& h) {
      if (!in_.array_of(5) || !in_.below(kAny, h.at) || !in_.below(65, h.width)) return false;
      return (h.width == 32 || h.width == 64) && terms(h.terms) && in_.integer(h.add) && in_.below(63, h.shift);
    });
  }

  bool refs(std::vector<RefPlan>& out) {
    return list(out, [&](RefPlan& r) {
      uint32_t use = 0;
      if (!in_.array_of(3) || !in_.below(uint64_t{1} << 32, r.slot) || !in_.below(kAny, r.at) || !in_.below(3, use)) return false;
      r.use = static_cast<Use>(use);
      return true;
    });
  }

  bool end(EndPlan& out) { return in_.below(uint64_t{1} << 32, out.slot) && terms(out.offset); }

  bool part(PartPlan& out) {
    uint64_t count = 0;
    int64_t tag = 0;
    if (!in_.array(count) || !in_.integer(tag)) return false;
    if (tag == 1) {
      out.kind = RIG_FILL;
      return count == 4 && in_.array_of(3) && in_.integer(tag) && tag == 2 && entry(out.callee) && called(out.callee) &&
             params(out.params) && refs(out.refs);
    }
    if (tag == 2) {
      out.kind = RIG_COPY;
      return count == 6 && end(out.src) && end(out.dst) && in_.below(kAny, out.length);
    }
    if (tag != 3 || count != 8) return false;
    out.kind = RIG_LAUNCH;
    if (!entry(out.callee) || !params(out.params) || !refs(out.refs)) return false;
    for (int i = 0; i < 7; ++i) {
      if (i % 3 == 0 && i < 6 && !in_.array_of(3)) return false;
      if (!value(out.geometry[i])) return false;
    }
    return true;
  }

  bool called(const ValuePlan& callee) {
    const uint32_t device = p_.images[static_cast<size_t>(callee.a)].device;
    if (std::find(p_.host_code.begin(), p_.host_code.end(), device) == p_.host_code.end()) p_.host_code.push_back(device);
    return true;
  }

  bool view(SlotPlan& out) {
    if (!in_.array_of(3) || !in_.below(p_.memory.size(), out.index) || !in_.below(kAny, out.offset)) return false;
    const uint64_t size = p_.memory[out.index].nbytes;
    return in_.below(kAny, out.length) && out.offset <= size && out.length <= size - out.offset;
  }

  bool slot(SlotPlan& out) {
    uint64_t count = 0;
    int64_t tag = 0;
    if (!in_.array(count) || !in_.integer(tag)) return false;
    if (tag == 0) return count == 2 && view(out);
    if (tag == 1) {
      out.kind = SlotPlan::input;
      if (count != 2 || !in_.below(p_.inputs.size(), out.index)) return false;
      out.length = p_.inputs[out.index].nbytes;
      return true;
    }
    out.kind = SlotPlan::ints;
    out.length = p_.ints * 8;
    return tag == 2 && count == 1;
  }

  bool submit(StepPlan& out) {
    if (!in_.below(p_.devices.size(), out.device)) return false;
    return list(out.parts, [&](PartPlan& p) { return part(p); }) && list(out.slots, [&](SlotPlan& s) { return slot(s); }) &&
           list(out.fixed, [&](FixedPlan& f) { return in_.array_of(2) && view(f.view) && in_.below(2, f.writes); }) &&
           keeps_rules(p_, out);
  }

  bool move(StepPlan& out) {
    out.kind = StepPlan::move;
    out.slots.resize(2);
    out.dst.slot = 1;
    return slot(out.slots[0]) && terms(out.src.offset) && slot(out.slots[1]) && terms(out.dst.offset) &&
           in_.below(kAny, out.length) && keeps_rules(p_, out);
  }

  bool loop(StepPlan& out, uint32_t loops) {
    out.kind = StepPlan::loop;
    if (loops == kMaxLoops || !value(out.trips) || out.trips.kind > ValuePlan::word || !steps(out.body, loops + 1)) return false;
    if (!in_.nil() && !in_.below(p_.ints, out.trip)) return false;
    if (in_.nil()) return true;
    if (!in_.array_of(2) || !slot(out.slots.emplace_back())) return false;
    const SlotPlan& flag = out.slots[0];
    return in_.below(flag.kind == SlotPlan::input ? uint64_t{INT64_MAX} : flag.length, out.flag_at);
  }

  bool steps(std::vector<StepPlan>& out, uint32_t loops) {
    return list(out, [&](StepPlan& s) {
      uint64_t count = 0;
      int64_t tag = 0;
      if (!in_.array(count) || !in_.integer(tag)) return false;
      if (tag == 0) return count == 5 && submit(s);
      if (tag == 1) return count == 6 && move(s);
      return tag == 2 && count == 5 && loop(s, loops);
    });
  }

  const uint8_t* data_;
  uint64_t size_;
  Packed& p_;
  Cursor in_{nullptr, nullptr};
  uint64_t body_end_ = 0;
  uint64_t base_ = 0;  // where blobs start
  uint64_t end_ = 0;   // of the last blob
};

class Resolver {
 public:
  Resolver(const std::vector<Ref<Image>>& images, const std::vector<std::string_view>& names, Error& err)
      : images_(images), names_(names), err_(err) {}

  bool steps(std::vector<StepPlan>& steps, const std::string& path) {
    for (size_t i = 0; i < steps.size(); ++i) {
      StepPlan& s = steps[i];
      const std::string here = path + "[" + std::to_string(i) + "]";
      for (size_t j = 0; j < s.parts.size(); ++j) {
        if (part(s.parts[j])) continue;
        err_.message = here + ".parts[" + std::to_string(j) + "]: " + err_.message;
        return false;
      }
      if (!this->steps(s.body, here + ".body")) return false;
    }
    return true;
  }

 private:
  bool function(const ValuePlan& entry, Function& out) {
    return images_[static_cast<size_t>(entry.a)]->resolve(std::string(names_[static_cast<size_t>(entry.b)]), out, err_);
  }

  bool value(ValuePlan& v) {
    if (v.kind != ValuePlan::entry) return true;
    Function f;
    if (!function(v, f)) return false;
    v = {ValuePlan::fixed, static_cast<int64_t>(f.entry), 0};
    return true;
  }

  bool part(PartPlan& p) {
    if (p.callee.kind == ValuePlan::entry && !function(p.callee, p.function)) return false;
    for (HolePlan& h : p.params.holes) {
      for (TermPlan& t : h.terms) {
        if (!value(t.value)) return false;
      }
    }
    return std::all_of(std::begin(p.geometry), std::end(p.geometry), [&](ValuePlan& v) { return value(v); });
  }

  const std::vector<Ref<Image>>& images_;
  const std::vector<std::string_view>& names_;
  Error& err_;
};

void note_written(const std::vector<StepPlan>& steps, std::vector<bool>& found) {
  const auto note = [&](const SlotPlan& slot) {
    if (slot.kind == SlotPlan::memory) found[slot.index] = true;
  };
  for (const StepPlan& s : steps) {
    if (s.kind == StepPlan::move) note(s.slots[1]);
    for (const FixedPlan& f : s.fixed) {
      if (f.writes) note(f.view);
    }
    for (const PartPlan& p : s.parts) {
      if (p.kind == RIG_COPY) note(s.slots[p.dst.slot]);
      for (const RefPlan& r : p.refs) {
        if (r.use != Use::read) note(s.slots[r.slot]);
      }
    }
    note_written(s.body, found);
  }
}

}  // namespace

std::vector<bool> Packed::written() const {
  std::vector<bool> found(memory.size(), false);
  note_written(steps, found);
  return found;
}

bool Packed::resolve(const std::vector<Ref<Image>>& loaded, Error& err) { return Resolver(loaded, names, err).steps(steps, "steps"); }

bool read_packed(const uint8_t* data, size_t size, Packed& out) { return Reader(data, size, out).read(); }

}  // namespace rig
