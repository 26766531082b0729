#include "timeline.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "futex.h"

using rig::Code;
using rig::Error;
using rig::Reach;
using rig::Timeline;

namespace {

class TestGate : public rig::Gate {
 public:
  explicit TestGate(int polls = 1 << 30) : polls_(polls) {}
  void release() override { ++released; }
  bool poll() override { return ++polled < polls_; }
  int released = 0, polled = 0;

 private:
  int polls_;
};

Timeline& made(const char* name) { return *new Timeline(name); }

}  // namespace

// spec: R-point
TEST(timeline_counts_what_is_submitted_and_reached) {
  Timeline& t = made("a");
  CHECK(t.submitted() == 0 && t.reached() == 0);
  CHECK(t.next() == 1 && t.next() == 2);
  CHECK(t.reached(0));
  CHECK(!t.reached(1));
  t.reach(1);
  CHECK(t.reached(1) && !t.reached(2));
  CHECK(t.submitted() == 2);
}

// spec: R-point
TEST(timeline_wait_ends_by_time_or_by_reach) {
  Timeline& t = made("a");
  t.next();
  CHECK(t.wait(0, -1, nullptr) == Reach::reached);
  CHECK(t.wait(1, 0, nullptr) == Reach::timeout);
  const int64_t began = rig::now_ns();
  CHECK(t.wait(1, 20'000'000, nullptr) == Reach::timeout);
  CHECK(rig::now_ns() - began >= 20'000'000);
  std::thread other([&] {
    const timespec nap{0, 5'000'000};
    nanosleep(&nap, nullptr);
    t.reach(1);
  });
  CHECK(t.wait(1, -1, nullptr) == Reach::reached);
  other.join();
  CHECK(t.wait(1, 0, nullptr) == Reach::reached);
}

// spec: R-point
TEST(timeline_wakes_all_waiters_in_any_order) {
  for (int round = 0; round < 50; ++round) {
    Timeline& t = made("a");
    std::atomic<int> reached{0};
    std::vector<std::thread> waiters;
    for (uint64_t value = 1; value <= 8; ++value) {
      waiters.emplace_back([&t, &reached, value] {
        if (t.wait(value, -1, nullptr) == Reach::reached && t.reached(value)) ++reached;
      });
    }
    for (uint64_t value = 1; value <= 8; ++value) t.reach(value);
    for (std::thread& w : waiters) w.join();
    CHECK(reached == 8);
  }
}

// spec: R-lost
TEST(timeline_loss_wakes_all_and_keeps_what_was_reached) {
  Timeline& t = made("a");
  for (int i = 0; i < 3; ++i) t.next();
  t.reach(1);
  std::atomic<int> lost{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 6; ++i) {
    waiters.emplace_back([&t, &lost, i] {
      if (t.wait(2 + static_cast<uint64_t>(i % 2), i < 3 ? -1 : 30'000'000'000, nullptr) == Reach::lost) ++lost;
    });
  }
  t.lose("it broke");
  t.lose("another reason");
  for (std::thread& w : waiters) w.join();
  CHECK(lost == 6);
  CHECK(t.lost() && t.lost_reason() == "it broke");
  CHECK(t.wait(1, -1, nullptr) == Reach::reached);
  CHECK(t.wait(2, 0, nullptr) == Reach::lost);
  CHECK(t.over(3));
  Error err;
  CHECK(!rig::lost_error(t, 2, err));
  CHECK(err.code == Code::lost && err.device == "a" && err.message == "a: the device is lost: it broke");
}

// spec: R-lost
TEST(timeline_reached_before_the_loss_is_reached) {
  // The waiter may look between the two: what was reached first counts.
  for (int round = 0; round < 3000; ++round) {
    Timeline& t = made("a");
    std::atomic<bool> go{false};
    std::thread device([&] {
      while (!go) {
      }
      t.reach(1);
      t.lose("closed");
    });
    go = true;
    const Reach r = round % 2 == 0 ? t.wait(1, -1, nullptr) : [&] {
      TestGate gate;
      return t.wait(1, -1, &gate);
    }();
    CHECK(r == Reach::reached);
    device.join();
  }
}

// spec: R-lost
TEST(timeline_failed_work_is_lost_and_later_work_is_not) {
  Timeline& t = made("b");
  for (int i = 0; i < 3; ++i) t.next();
  t.reach(1);
  t.fail(2, "a: the device is lost: it broke");
  t.reach(2);
  t.reach(3);
  CHECK(t.wait(1, -1, nullptr) == Reach::reached);
  CHECK(t.wait(2, -1, nullptr) == Reach::lost);
  CHECK(t.wait(2, 0, nullptr) == Reach::lost);
  CHECK(t.wait(3, -1, nullptr) == Reach::reached);
  CHECK(!t.lost());
  Error err;
  rig::lost_error(t, 2, err);
  CHECK(err.message == "b: submission 2 was not done: a: the device is lost: it broke");
}

// spec: R-signal
TEST(timeline_wait_steps_aside_and_can_be_interrupted) {
  Timeline& t = made("a");
  t.next();
  TestGate gate(3);
  const int64_t began = rig::now_ns();
  CHECK(t.wait(1, -1, &gate) == Reach::interrupted);
  CHECK(gate.released >= 1 && gate.polled == 3);
  CHECK(rig::now_ns() - began < 5'000'000'000);
  TestGate idle;
  t.reach(1);
  CHECK(t.wait(1, -1, &idle) == Reach::reached);
  CHECK(idle.released == 0);  // nothing to wait for
}

TEST(timeline_counts_done_work_from_many_threads) {
  Timeline& t = made("host");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&t] {
      for (int k = 0; k < 5000; ++k) CHECK(t.reached(t.count_done()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(t.submitted() == 20000 && t.reached() == 20000);
}
