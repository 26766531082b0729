#include "host_info.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "check.h"

using rig::arch_runs;

namespace {

// A folder with files, as the system shows control groups.
class Tree {
 public:
  Tree() {
    char name[] = "/tmp/rig-groups-XXXXXX";
    root = mkdtemp(name);
  }
  ~Tree() {
    const int status = std::system(("rm -rf " + root).c_str());
    CHECK(status == 0);
  }
  void put(const std::string& path, const std::string& text) {
    for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
      mkdir((root + "/" + path.substr(0, at)).c_str(), 0700);
    }
    std::ofstream(root + "/" + path) << text;
  }
  double quota() const { return rig::group_quota(root + "/groups", root + "/mount"); }
  std::string root;
};

bool near(double a, double b) { return std::fabs(a - b) < 1e-9; }

}  // namespace

// spec: R-device-host
TEST(host_info_levels_run_what_is_no_higher) {
  for (int have = 1; have <= 4; ++have) {
    for (int need = 1; need <= 4; ++need) {
      CHECK(arch_runs("x86-64-v" + std::to_string(have), "x86-64-v" + std::to_string(need)) == (have >= need));
    }
  }
}

// spec: R-device-host
TEST(host_info_arm_runs_what_needs_no_more_features) {
  CHECK(arch_runs("arm64", "arm64"));
  CHECK(arch_runs("arm64+dotprod+fp16", "arm64"));
  CHECK(arch_runs("arm64+dotprod+fp16", "arm64+fp16"));
  CHECK(arch_runs("arm64+dotprod+fp16", "arm64+fp16+dotprod"));
  CHECK(!arch_runs("arm64", "arm64+fp16"));
  CHECK(!arch_runs("arm64+dotprod+fp16", "arm64+sve"));
}

// spec: R-device-host
TEST(host_info_other_archs_run_only_themselves) {
  CHECK(!arch_runs("x86-64-v4", "arm64"));
  CHECK(!arch_runs("arm64+fp16", "x86-64-v1"));
  CHECK(arch_runs("sm_90", "sm_90"));
  CHECK(!arch_runs("sm_90", "sm_80"));
  for (const char* odd : {"", "x86-64", "x86-64-v", "x86-64-v0", "x86-64-v5", "x86-64-v22", "X86-64-v2", "x86-64-v2 "}) {
    CHECK(!arch_runs("x86-64-v4", odd));
  }
}

// spec: R-device-host
TEST(host_info_of_this_machine) {
  const rig::HostInfo& info = rig::host_info();
  CHECK(info.instruction_set == "x86_64" || info.instruction_set == "arm64");
  CHECK(arch_runs(info.arch, info.instruction_set == "x86_64" ? "x86-64-v1" : "arm64"));
  CHECK(info.cache_bytes == 0 || info.cache_bytes >= 16 << 10);
}

// spec: R-device-host
TEST(host_info_cores_by_mask) {
  const uint32_t all = rig::usable_cores();
  CHECK(all >= 1);
  uint32_t one = 0;
  std::thread([&one] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    sched_setaffinity(0, sizeof set, &set);
    one = rig::usable_cores();
  }).join();
  CHECK(one == 1);
  CHECK(rig::usable_cores() == all);
}

// spec: R-device-host
TEST(host_info_quota_of_version_2) {
  Tree tree;
  tree.put("groups", "0::/a/b\n");
  CHECK(tree.quota() == 0);
  tree.put("mount/a/b/cpu.max", "max 100000\n");
  CHECK(tree.quota() == 0);
  tree.put("mount/a/b/cpu.max", "150000 100000\n");
  CHECK(near(tree.quota(), 1.5));
  tree.put("mount/a/cpu.max", "50000 100000\n");  // a parent's holds too
  CHECK(near(tree.quota(), 0.5));
  tree.put("mount/cpu.max", "400000 100000\n");
  CHECK(near(tree.quota(), 0.5));
  tree.put("groups", "0::/\n");  // as a container sees it
  CHECK(near(tree.quota(), 4));
  tree.put("mount/cpu.max", "nonsense");
  CHECK(tree.quota() == 0);
}

// spec: R-device-host
TEST(host_info_quota_of_version_1) {
  Tree tree;
  tree.put("groups", "4:memory:/x\n3:cpu,cpuacct:/job\n1:cpuset:/y\n");
  tree.put("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  tree.put("mount/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  tree.put("mount/memory/x/cpu.cfs_quota_us", "1000\n");  // no controller of time
  tree.put("mount/memory/x/cpu.cfs_period_us", "100000\n");
  CHECK(tree.quota() == 0);
  tree.put("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  CHECK(near(tree.quota(), 2.5));
  tree.put("groups", "nonsense\n3:cpu\n");
  CHECK(tree.quota() == 0);
}
