#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "device.h"

namespace {

// Count each iteration: words are the counters' address.
void count_each(const uint64_t* words, uint64_t begin, uint64_t end) {
  auto* counters = reinterpret_cast<std::atomic<uint32_t>*>(words[0]);
  for (uint64_t i = begin; i < end; ++i) counters[i].fetch_add(1, std::memory_order_relaxed);
}

// Note the range: words are the address of ranges and of the number taken.
struct Range {
  uint64_t begin, end;
};
void note_range(const uint64_t* words, uint64_t begin, uint64_t end) {
  auto* taken = reinterpret_cast<std::atomic<uint64_t>*>(words[1]);
  reinterpret_cast<Range*>(words[0])[taken->fetch_add(1)] = {begin, end};
}

// A sum that depends on its order: out[i] = sum of 1 / (k + i).
void sums(const uint64_t* words, uint64_t begin, uint64_t end) {
  auto* out = reinterpret_cast<float*>(words[0]);
  for (uint64_t i = begin; i < end; ++i) {
    float s = 0;
    for (int k = 1; k < 40; ++k) s += 1.0f / static_cast<float>(static_cast<uint64_t>(k) + i);
    out[i] = s;
  }
}

// Take long enough for workers to come, and note who came.
void who(const uint64_t* words, uint64_t begin, uint64_t) {
  reinterpret_cast<std::atomic<int>*>(words[0])[begin].store(gettid());
  const timespec nap{0, 1'000'000};
  nanosleep(&nap, nullptr);
}

uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

bool all_once(uint64_t iterations, uint64_t blocks) {
  std::vector<std::atomic<uint32_t>> counters(iterations + 1);
  const uint64_t words[] = {address(counters.data())};
  rig::run_split(count_each, words, iterations, blocks);
  for (uint64_t i = 0; i < iterations; ++i) {
    if (counters[i] != 1) return false;
  }
  return counters[iterations] == 0;
}

struct Threads {
  explicit Threads(uint32_t n) { rig::set_host_threads(n); }
  ~Threads() { rig::set_host_threads(0); }
};

rig_part launch(uint64_t gx, uint64_t gy, uint64_t gz, uint64_t tx, uint64_t ty, uint64_t tz, uint64_t shared = 0, uint64_t params = 8) {
  rig_part part{};
  part.kind = RIG_LAUNCH;
  part.params_size = params;
  const uint64_t groups[] = {gx, gy, gz}, threads[] = {tx, ty, tz};
  std::memcpy(part.groups, groups, sizeof groups);
  std::memcpy(part.threads, threads, sizeof threads);
  part.shared = shared;
  return part;
}

bool refused(const rig_part& part, const std::string& text) {
  char why[RIG_WHY] = "";
  return !rig::check_host_part(part, why) && std::string(why).find(text) != std::string::npos;
}

bool runs(const rig_part& part) {
  char why[RIG_WHY] = "";
  return rig::check_host_part(part, why);
}

}  // namespace

TEST(pool_blocks_are_the_rule_and_meet) {
  const uint64_t big = INT64_MAX;
  CHECK(rig::block_begin(0, big, big) == 0);
  CHECK(rig::block_begin(big, big, big) == big);
  CHECK(rig::block_begin(big - 1, big, big) == big - 1);
  CHECK(rig::block_begin(3, big, 7) == static_cast<uint64_t>(static_cast<rig::Wide>(3) * big / 7));
  for (const uint64_t iterations : {1u, 2u, 5u, 7u, 64u, 1000u}) {
    for (const uint64_t blocks : {1u, 2u, 3u, 7u, 64u, 1000u, 5000u}) {
      CHECK(rig::block_begin(0, iterations, blocks) == 0);
      CHECK(rig::block_begin(blocks, iterations, blocks) == iterations);
      for (uint64_t b = 0; b < blocks; ++b) CHECK(rig::block_begin(b, iterations, blocks) == b * iterations / blocks);
    }
  }
}

TEST(pool_runs_every_iteration_once) {
  for (const uint32_t threads : {1u, 2u, 4u}) {
    const Threads set(threads);
    for (const uint64_t iterations : {0u, 1u, 2u, 3u, 7u, 63u, 64u, 65u, 1000u}) {
      for (const uint64_t blocks : {1u, 2u, 3u, 5u, 8u, 64u, 1000u, 3000u}) CHECK(all_once(iterations, blocks));
    }
  }
}

TEST(pool_calls_once_per_block_that_has_work) {
  const Threads set(3);
  for (const uint64_t blocks : {1u, 4u, 10u, 25u}) {
    std::vector<Range> ranges(64);
    std::atomic<uint64_t> taken{0};
    const uint64_t words[] = {address(ranges.data()), address(&taken)};
    rig::run_split(note_range, words, 10, blocks);
    CHECK(taken == std::min<uint64_t>(blocks, 10));
    std::set<std::pair<uint64_t, uint64_t>> seen, right;
    for (uint64_t i = 0; i < taken; ++i) seen.insert({ranges[i].begin, ranges[i].end});
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t begin = b * 10 / blocks, end = (b + 1) * 10 / blocks;
      if (begin < end) right.insert({begin, end});
    }
    CHECK(seen == right);
  }
}

TEST(pool_results_do_not_depend_on_threads) {
  std::vector<float> first(3000), other(3000);
  const uint64_t a[] = {address(first.data())}, b[] = {address(other.data())};
  rig::run_blocks(sums, a, 3000, 1);
  for (const uint32_t threads : {1u, 2u, 3u, 5u}) {
    const Threads set(threads);
    for (const uint64_t blocks : {2u, 7u, 100u}) {
      std::fill(other.begin(), other.end(), 0.0f);
      rig::run_split(sums, b, 3000, blocks);
      CHECK(std::memcmp(first.data(), other.data(), 3000 * sizeof(float)) == 0);
    }
  }
}

TEST(pool_serves_callers_at_once) {
  const Threads set(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (uint64_t c = 0; c < 6; ++c) {
    callers.emplace_back([&wrong, c] {
      for (uint64_t i = 0; i < 300; ++i) {
        if (!all_once(1 + (i * 7 + c) % 97, 1 + (i + c) % 13)) ++wrong;
      }
    });
  }
  for (std::thread& c : callers) c.join();
  CHECK(wrong == 0);
}

TEST(pool_grows_and_uses_no_more_threads_than_asked_for) {
  const auto distinct = [] {
    std::vector<std::atomic<int>> ids(24);
    const uint64_t words[] = {address(ids.data())};
    rig::run_split(who, words, 24, 24);
    std::set<int> seen;
    for (const std::atomic<int>& id : ids) seen.insert(id);
    return seen.size();
  };
  {
    const Threads set(6);
    CHECK(distinct() > 1);
    CHECK(rig::pool_workers() == 5);
    CHECK(distinct() <= 6);
  }
  {
    const Threads set(2);
    for (int i = 0; i < 5; ++i) CHECK(distinct() == 2);
    CHECK(rig::pool_workers() == 5);  // they sleep
  }
  const Threads set(1);
  CHECK(distinct() == 1);
}

TEST(pool_one_block_stays_on_the_caller) {
  const Threads set(4);
  std::atomic<int> id{0};
  const uint64_t words[] = {address(&id)};
  rig::run_split(who, words, 1, 1);
  CHECK(id == gettid());
}

TEST(pool_geometry_of_host_code) {
  CHECK(runs(launch(4, 1, 1, 100, 1, 1)));
  CHECK(runs(launch(1, 1, 1, 1, 1, 1, 0, 0)));
  CHECK(runs(launch(0, 1, 1, 100, 1, 1)));
  CHECK(runs(launch(4, 1, 0, 100, 9, 1)));  // a zero runs nothing, whatever stands beside it
  CHECK(refused(launch(4, 2, 1, 100, 1, 1), "groups (4, 2, 1)"));
  CHECK(refused(launch(4, 1, 3, 100, 1, 1), "(blocks, 1, 1)"));
  CHECK(refused(launch(4, 1, 1, 100, 2, 1), "threads (100, 2, 1)"));
  CHECK(refused(launch(4, 1, 1, 100, 1, 2), "(iterations, 1, 1)"));
  CHECK(refused(launch(static_cast<uint64_t>(-4), 1, 1, 100, 1, 1), "-4 blocks"));
  CHECK(refused(launch(4, 1, 1, static_cast<uint64_t>(-1), 1, 1), "-1 iterations"));
  CHECK(refused(launch(4, 1, 1, 100, 1, 1, 16), "shared memory of 16 bytes"));
  CHECK(refused(launch(4, 1, 1, 100, 1, 1, 0, 12), "parameters of 12 bytes"));
}
