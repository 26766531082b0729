// What a caller of a long native operation gives to it: a way to step aside before blocking, and a way to be interrupted.
#pragma once

namespace rig {

class Gate {
 public:
  virtual ~Gate() = default;
  // Called before anything that blocks or takes long; may be called any number of times.
  virtual void release() {}
  // Called at most every 50 ms or so; false ends the operation with Code::interrupted.
  virtual bool poll() { return true; }
};

}  // namespace rig
