// Handing work to a device in order: the one place where a submission is numbered, and where bytes move between devices.
#pragma once

#include "order.h"

namespace rig {

// Submit work on an asynchronous device, after what its memory and `waits` ask for; fills in the value. `waits` is used
// as scratch. The keep is retained for the device.
bool submit_work(Device& device, rig_work& work, const Named* named, size_t count, WaitList& waits, Keep* keep, Gate* gate,
                 Error& err);

struct MoveEnd {
  Ref<Region> region;
  uint64_t offset = 0;
};

// One copy of nbytes between two regions by the device that reaches both: the source's, else the destination's, else the
// host, which is done when this returns. Host memory is named through its borrow on the other end's device. `waits` holds
// points to wait for besides; it is used as scratch. Gives the maker's point.
bool submit_move(const MoveEnd& src, const MoveEnd& dst, uint64_t nbytes, WaitList& waits, Gate* gate, Stamp& point,
                 Error& err);

}  // namespace rig
