#include "fork.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "device.h"
#include "futex.h"
#include "pool.h"
#include "region.h"

namespace {

// Run body in a child, which must end by itself within some seconds; gives its exit code, -1 for a hang or a signal.
template <typename F>
int in_child(F body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  for (int i = 0; i < 4000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    usleep(5000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsInChild = false;  // the sanitizer allows none after a fork of a process with threads
#else
constexpr bool kThreadsInChild = true;
#endif

void count(const uint64_t* words, uint64_t begin, uint64_t end) {
  reinterpret_cast<std::atomic<uint64_t>*>(words[0])->fetch_add(end - begin);
  const timespec nap{0, 200'000};
  nanosleep(&nap, nullptr);
}

bool split_is_right() {
  std::atomic<uint64_t> done{0};
  const uint64_t words[] = {reinterpret_cast<uint64_t>(&done)};
  rig::run_split(count, words, 1000, 10);
  return done == 1000;
}

}  // namespace

TEST(fork_lock_excludes) {
  rig::ForkLock lock;
  uint64_t counter = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20000; ++k) {
        if (k % 3 == 0 && lock.try_lock()) {
          ++counter;
          lock.unlock();
        }
        lock.lock();
        ++counter;
        lock.unlock();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(counter >= 80000);
  CHECK(lock.try_lock());
  CHECK(!lock.try_lock());
  lock.unlock();
}

// spec: R-fork
TEST(fork_counts_generations_and_calls_back) {
  static int resets = 0;
  rig::on_fork_child([] { ++resets; });
  const uint32_t before = rig::fork_generation();
  const int code = in_child([&] { return rig::fork_generation() == before + 1 && resets == 1 ? 0 : 1; });
  CHECK(code == 0);
  CHECK(rig::fork_generation() == before && resets == 0);
}

// spec: R-fork
TEST(fork_child_finds_a_held_lock_free) {
  rig::ForkLock lock;
  lock.lock();
  const int code = in_child([&] {
    if (!lock.try_lock()) return 1;
    if (lock.try_lock()) return 2;
    lock.unlock();
    lock.lock();
    return 0;
  });
  CHECK(code == 0);
  CHECK(!lock.try_lock());  // the parent's is still held
  lock.unlock();
}

// spec: R-fork
TEST(fork_childs_threads_share_a_lock_left_behind) {
  if (!kThreadsInChild) return;
  static rig::ForkLock locks[400];
  for (rig::ForkLock& lock : locks) lock.lock();
  const int code = in_child([] {
    static std::atomic<int> inside[400];
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 400; ++k) {
          locks[k].lock();
          if (inside[k].fetch_add(1) != 0) ++wrong;
          inside[k].fetch_sub(1);
          locks[k].unlock();
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return wrong == 0 ? 0 : 1;
  });
  CHECK(code == 0);
  for (rig::ForkLock& lock : locks) lock.unlock();
}

// spec: R-fork
TEST(fork_child_makes_workers_anew) {
  if (!kThreadsInChild) return;
  rig::set_host_threads(3);
  CHECK(split_is_right());
  CHECK(rig::pool_workers() == 2);
  const int code = in_child([] {
    if (rig::pool_workers() != 0) return 1;
    if (!split_is_right()) return 2;
    return rig::pool_workers() == 2 ? 0 : 3;
  });
  CHECK(code == 0);
  CHECK(split_is_right());
  rig::set_host_threads(0);
}

// spec: R-fork
TEST(fork_child_of_a_busy_pool_is_free) {
  if (!kThreadsInChild) return;
  rig::set_host_threads(3);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) split_is_right();
  });
  for (int i = 0; i < 20; ++i) {
    usleep(static_cast<useconds_t>(100 * i));
    CHECK(in_child([] { return split_is_right() ? 0 : 1; }) == 0);
  }
  stop = true;
  busy.join();
  rig::set_host_threads(0);
}

// spec: R-fork
TEST(fork_child_refuses_inherited_memory_devices) {
  rig::MemoryDeviceOptions options;
  options.name = "mem";
  options.delay = 0.2;
  rig::Ref<rig::Device> device = rig::make_memory_device(options);
  rig::Error err;
  rig::Ref<rig::Region> region = rig::Region::alloc(device, 100, 0, err);
  CHECK(region);
  rig_work work{};
  work.value = device->timeline().next();
  char why[RIG_WHY] = "";
  CHECK(device->table()->submit(device->state(), &work, why) == RIG_OK);
  const int code = in_child([&] {
    rig::Error e;
    if (device->usable(e) || e.code != rig::Code::lost) return 1;
    if (e.message != "mem: the device is lost: it was opened before a fork and does not live in the child") return 2;
    if (rig::Region::alloc(device, 1, 0, e)) return 3;
    if (device->timeline().wait(work.value, -1, nullptr) != rig::Reach::lost) return 4;
    device->close();
    region = {};
    device = {};
    if (!kThreadsInChild) return 0;
    rig::Ref<rig::Device> own = rig::make_memory_device(options);
    rig_work more{};
    more.value = own->timeline().next();
    if (own->table()->submit(own->state(), &more, why) != RIG_OK) return 5;
    return own->timeline().wait(more.value, -1, nullptr) == rig::Reach::reached ? 0 : 6;
  });
  CHECK(code == 0);
  CHECK(device->timeline().wait(work.value, -1, nullptr) == rig::Reach::reached);
}
