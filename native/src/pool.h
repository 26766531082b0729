// The host's worker pool: splits one launch at a time over threads that sleep when there is none.
#pragma once

#include <cstdint>

#include "host_call.h"

namespace rig {

// Run every block of a launch, on this thread and, where they are free, on the pool's. Returns when all are done; gives
// whether workers had to be woken for it.
bool run_split(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks);

// The same on this thread alone.
void run_blocks(HostFunction function, const uint64_t* words, uint64_t iterations, uint64_t blocks);

// A run with much split work tells the pool, whose workers then look out for the next job instead of sleeping. Gives
// whether there are workers; each true is paired with a leave.
bool pool_enter_run();
void pool_leave_run();

// The number of workers alive in this process now.
uint32_t pool_workers();

}  // namespace rig
