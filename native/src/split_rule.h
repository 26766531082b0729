// When a program's launches are split over the pool's workers, by what that gained and lost so far.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rig {

// A worker that loses its core to other load holds up the whole launch. What splitting gained pays for its losses; a
// loss that it cannot pay keeps launches on one thread for twenty times as long, so that a twentieth of the time is lost
// at most.
class SplitRule {
 public:
  static constexpr int64_t kRegret = 20;
  static constexpr int64_t kMostGainNs = 5'000'000;  // kept of what was gained: other load is noticed that late
  static constexpr int64_t kMostDebtNs = 100'000;    // of wakes, before it counts as a loss

  bool split_at(int64_t now) const { return now >= serial_until_; }

  // A split launch ended at `now`, `lost` nanoseconds later than on one thread (less than 0: a gain); `woke`: workers
  // slept when it began. Those gain nothing for the launch that wakes them, so its loss is a debt that the gains of
  // the next launches may pay.
  void count(int64_t now, int64_t lost, bool woke) {
    if (woke && lost > 0) {
      debt_ += lost;
    } else {
      gain_ = std::min(gain_ - lost, kMostGainNs);
      if (lost > 0) call_in();
    }
    if (debt_ > kMostDebtNs || gain_ >= debt_) call_in();
    if (gain_ >= 0) return;
    serial_until_ = now - kRegret * gain_;
    gain_ = 0;
  }

 private:
  void call_in() {
    gain_ -= debt_;
    debt_ = 0;
  }

  int64_t gain_ = 0;  // what splitting gained and did not lose again
  int64_t debt_ = 0;  // what wakes cost and gains did not pay yet
  int64_t serial_until_ = 0;
};

}  // namespace rig
