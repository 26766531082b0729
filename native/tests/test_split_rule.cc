#include "split_rule.h"

#include <cstdint>
#include <random>

#include "check.h"

using rig::SplitRule;

namespace {

constexpr int64_t kUs = 1000;

TEST(split_rule_pauses_for_twenty_times_a_loss) {
  SplitRule rule;
  CHECK(rule.split_at(0));
  rule.count(1000 * kUs, 30 * kUs, false);
  CHECK(!rule.split_at(1000 * kUs));
  CHECK(!rule.split_at(1600 * kUs - 1));
  CHECK(rule.split_at(1600 * kUs));
}

TEST(split_rule_pays_losses_with_gains) {
  SplitRule rule;
  for (int i = 0; i < 10; ++i) rule.count(0, -9 * kUs, false);
  rule.count(100 * kUs, 80 * kUs, false);
  CHECK(rule.split_at(100 * kUs));
  rule.count(200 * kUs, 30 * kUs, false);  // 10 of it paid
  CHECK(!rule.split_at(599 * kUs));
  CHECK(rule.split_at(600 * kUs));
}

TEST(split_rule_keeps_a_bounded_gain) {
  SplitRule rule;
  for (int i = 0; i < 1000; ++i) rule.count(0, -1000 * kUs, false);
  rule.count(0, SplitRule::kMostGainNs + 1000 * kUs, false);
  CHECK(!rule.split_at(19'999 * kUs));
  CHECK(rule.split_at(20'000 * kUs));
}

TEST(split_rule_comes_back_after_a_wake) {
  SplitRule rule;
  rule.count(0, 40 * kUs, true);
  CHECK(rule.split_at(0));
  for (int i = 0; i < 5; ++i) rule.count(0, -8 * kUs, false);  // paid
  rule.count(0, 1 * kUs, false);
  CHECK(rule.split_at(20 * kUs));
}

TEST(split_rule_calls_in_wakes_that_nothing_pays) {
  SplitRule rule;
  rule.count(0, 40 * kUs, true);
  rule.count(0, 40 * kUs, true);
  CHECK(rule.split_at(0));
  rule.count(0, 40 * kUs, true);
  CHECK(!rule.split_at(2399 * kUs));
  SplitRule second;
  second.count(0, 40 * kUs, true);
  second.count(0, 1 * kUs, false);  // the next finds them awake and loses: both count
  CHECK(!second.split_at(819 * kUs));
  CHECK(second.split_at(820 * kUs));
}

// Whatever other load does, the whole costs a twentieth more than on one thread, and what one loss and one debt are.
TEST(split_rule_bounds_what_is_lost) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    SplitRule rule;
    int64_t now = 0, serial = 0, longest = 0;
    const int bad = static_cast<int>(random() % 100), sleepy = static_cast<int>(random() % 100);
    for (int i = 0; i < 5000; ++i) {
      const int64_t cost = (1 + random() % 100) * kUs;
      serial += cost;
      if (!rule.split_at(now)) {
        now += cost;
        continue;
      }
      const bool woke = static_cast<int>(random() % 100) < sleepy;
      const int64_t lost = static_cast<int>(random() % 100) < bad ? static_cast<int64_t>(random() % 4000) * kUs : -cost / 2;
      longest = lost > longest ? lost : longest;
      now += cost + lost;
      rule.count(now, lost, woke);
    }
    CHECK(now <= serial + serial / SplitRule::kRegret + longest + SplitRule::kMostDebtNs);
  }
}

}  // namespace
