// What this machine is: its arch, its cores as far as this process may use them, its caches.
#pragma once

#include <cstdint>
#include <string>

namespace rig {

struct HostInfo {
  std::string arch;             // x86-64-v1 .. v4, or arm64 with its sorted features
  std::string instruction_set;  // x86_64 or arm64
  uint64_t cache_bytes = 0;     // the largest cache of the first core, 0 if the system does not state it
};

const HostInfo& host_info();

// Cores by this thread's affinity mask and the control group's quota, at least 1.
uint32_t usable_cores();

// The least quota, in cores, of the control groups that the file `groups` lists (as /proc/self/cgroup does) and their
// parents, below the folder `mount`; 0 for none. Version 2's cpu.max, and version 1's pair of files.
double group_quota(const std::string& groups, const std::string& mount);

// Whether a machine of arch `have` runs code compiled for `need`.
bool arch_runs(const std::string& have, const std::string& need);

}  // namespace rig
