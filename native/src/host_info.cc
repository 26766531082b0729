#include "host_info.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace rig {
namespace {

#if defined(__x86_64__)
std::string find_arch() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
  if (__builtin_cpu_supports("x86-64-v2")) return "x86-64-v2";
  return "x86-64-v1";
}
constexpr const char* kInstructionSet = "x86_64";
#elif defined(__aarch64__)
std::string find_arch() {
  const unsigned long caps = getauxval(AT_HWCAP);
  std::string arch = "arm64";
  // Sorted by name.
  if (caps & HWCAP_ASIMDDP) arch += "+dotprod";
  if (caps & HWCAP_ASIMDHP) arch += "+fp16";
  if (caps & HWCAP_ATOMICS) arch += "+lse";
  if (caps & HWCAP_SVE) arch += "+sve";
  return arch;
}
constexpr const char* kInstructionSet = "arm64";
#else
#error "rig has no host driver for this instruction set"
#endif

uint64_t find_cache() {
  uint64_t most = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    uint64_t n = 0;
    char unit = 0;
    if (!(file >> n)) break;
    file >> unit;
    if (unit == 'K') n <<= 10;
    if (unit == 'M') n <<= 20;
    most = std::max(most, n);
  }
  return most;
}

std::set<std::string> features(const std::string& arch) {
  std::set<std::string> out;
  std::stringstream in(arch);
  std::string word;
  while (std::getline(in, word, '+')) out.insert(word);
  return out;
}

// The quota of a control group in cores, or 0: version 2's cpu.max, else version 1's pair of files.
double folder_quota(const std::string& folder) {
  std::ifstream max(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (max >> quota >> period) return quota == "max" || period <= 0 ? 0 : strtod(quota.c_str(), nullptr) / period;
  std::ifstream q(folder + "/cpu.cfs_quota_us"), p(folder + "/cpu.cfs_period_us");
  double us = 0;
  if (q >> us && p >> period && us > 0 && period > 0) return us / period;
  return 0;
}

}  // namespace

double group_quota(const std::string& groups, const std::string& mount) {
  double least = 0;
  std::ifstream lines(groups);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (a == std::string::npos || b == std::string::npos) continue;
    const std::string controllers = line.substr(a + 1, b - a - 1);
    std::string path = line.substr(b + 1);
    std::string root;
    if (controllers.empty()) {
      root = mount;
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      root = mount + "/" + controllers;
    } else {
      continue;
    }
    for (;;) {
      const double quota = folder_quota(root + (path == "/" ? "" : path));
      if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
      if (path.empty() || path == "/") break;
      const size_t cut = path.rfind('/');
      path = cut == 0 || cut == std::string::npos ? "/" : path.substr(0, cut);
    }
  }
  return least;
}

const HostInfo& host_info() {
  static const HostInfo info = [] {
    HostInfo i;
    i.arch = find_arch();
    // A lower level than the machine's can be forced, to try what a weaker machine would refuse.
    if (const char* forced = getenv("RIG_ARCH"); forced && arch_runs(i.arch, forced)) i.arch = forced;
    i.instruction_set = kInstructionSet;
    i.cache_bytes = find_cache();
    return i;
  }();
  return info;
}

uint32_t usable_cores() {
  uint32_t cores = 1;
  // The kernel refuses a set smaller than its own.
  for (size_t cpus = 1024; cpus <= (1u << 18); cpus *= 2) {
    std::vector<cpu_set_t> set(cpus / 1024);
    const size_t size = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size, set.data()) != 0) continue;
    cores = static_cast<uint32_t>(std::max(CPU_COUNT_S(size, set.data()), 1));
    break;
  }
  const double quota = group_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota > 0) cores = std::min(cores, static_cast<uint32_t>(std::max(1.0, std::ceil(quota))));
  return cores;
}

bool arch_runs(const std::string& have, const std::string& need) {
  constexpr const char* kLevel = "x86-64-v";
  const auto level = [&](const std::string& a) {
    return a.size() == 9 && a.compare(0, 8, kLevel) == 0 && a[8] >= '1' && a[8] <= '4' ? a[8] - '0' : 0;
  };
  if (level(have) != 0 && level(need) != 0) return level(have) >= level(need);
  const std::set<std::string> h = features(have), n = features(need);
  if (h.count("arm64") && n.count("arm64")) return std::includes(h.begin(), h.end(), n.begin(), n.end());
  return !need.empty() && have == need;
}

}  // namespace rig
