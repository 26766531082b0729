// The state of one run, and how a failure in it is told.
#pragma once

#include <string>

#include "program.h"

namespace rig {

struct Program::Run {
  const Frame& frame;
  Gate* gate;
  std::vector<Stamp>* ends;
  Error& err;
  int copy = 0;
  Tape* tape = nullptr;
  int64_t* ints = nullptr;
  Region* ints_region = nullptr;
  std::vector<Stamp>* last = nullptr;  // this run's last point per device
  uint32_t countdown = 16;
  int64_t polled_at = 0;
  int64_t looked_at = 0;
  uint32_t stride = 64;  // calls between two polls, few where calls are slow
  bool watch = false;    // the run is long by estimate: look at the clock after every stride
  uint32_t step = 0;

  bool fail(const Program& p, Code code, const std::string& text, int64_t part = -1) const {
    const StepInfo& info = p.steps_[step];
    err.step = info.top;
    return err.set(code, info.path + (part < 0 ? "" : ".parts[" + std::to_string(part) + "]") + ": " + text);
  }
  // A failure below: the step is put in front, the kind stays.
  bool fail_below(const Program& p) const {
    if (err.code != Code::interrupted) {
      const StepInfo& info = p.steps_[step];
      err.step = info.top;
      err.message = info.path + ": " + err.message;
    }
    return false;
  }
};

}  // namespace rig
