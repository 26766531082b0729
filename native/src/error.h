// How the core reports a failure: functions return false (or null) and fill an Error.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace rig {

enum class Code : int { ok = 0, invalid = 1, refused = 2, out_of_memory = 3, lost = 4, interrupted = 5 };

struct Error {
  Code code = Code::ok;
  std::string message;
  std::string device;   // the device's name, for out_of_memory and lost
  uint64_t nbytes = 0;  // for out_of_memory
  int64_t step = -1;    // the program's top-level step, for a failure at a step

  bool set(Code c, std::string text) {
    code = c;
    message = std::move(text);
    return false;
  }
};

}  // namespace rig
