#include "file/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "region.h"
#include "submit.h"

using namespace rig;

namespace {

constexpr uint64_t kSize = 3 << 20;

// A file without a name, of kSize bytes that are all `value`; the second handle is the test's.
struct Made {
  Ref<Device> device;
  int fd = -1;

  explicit Made(uint8_t value, bool writable = true) {
    char name[] = "/tmp/rig-file-XXXXXX";
    fd = mkstemp(name);
    fill(value);
    device = make_file_device({"file", open(name, writable ? O_RDWR : O_RDONLY), writable, kSize});
    unlink(name);
  }
  ~Made() {
    device->close();
    close(fd);
  }
  Made(const Made&) = delete;

  void fill(uint8_t value) const {
    const std::vector<uint8_t> bytes(kSize, value);
    CHECK(pwrite(fd, bytes.data(), kSize, 0) == static_cast<ssize_t>(kSize));
  }
  uint64_t size() const {
    struct stat info{};
    fstat(fd, &info);
    return static_cast<uint64_t>(info.st_size);
  }
};

Ref<Region> host(uint64_t nbytes) {
  Error err;
  return Region::alloc(host_device(), nbytes, 0, err);
}

bool move(const Ref<Region>& src, const Ref<Region>& dst, uint64_t nbytes, Stamp& point, Error& err) {
  WaitList list;
  return submit_move({src, 0}, {dst, 0}, nbytes, list, nullptr, point, err);
}

bool all(const Ref<Region>& region, uint8_t value) {
  for (uint64_t i = 0; i < region->nbytes(); ++i) {
    if (region->host()[i] != value) return false;
  }
  return true;
}

}  // namespace

// spec: R-device-io
TEST(file_is_read_and_written_in_order) {
  const Made file(7);
  const Ref<Region> a = host(kSize), b = host(kSize);
  memset(a->host(), 9, kSize);
  Error err;
  Stamp point;
  CHECK(move(file.device->memory(), b, kSize, point, err));
  CHECK(move(a, file.device->memory(), kSize, point, err));
  CHECK(point.timeline == &file.device->timeline() && point.value == 2);
  CHECK(move(file.device->memory(), a, kSize, point, err));
  CHECK(a->wait_idle(false, nullptr, err) && b->wait_idle(false, nullptr, err));
  CHECK(all(a, 9) && all(b, 7));
}

// spec: R-device-io
TEST(file_that_shrinks_under_its_copies) {
  const Made file(7);
  std::atomic<bool> over{false};
  std::thread shrinks([&] {
    while (!over) {
      CHECK(ftruncate(file.fd, 100) == 0);
      file.fill(7);
    }
  });
  for (int i = 0; i < 100; ++i) {
    const Ref<Region> a = host(kSize);
    Error err;
    Stamp point;
    CHECK(move(file.device->memory(), a, kSize, point, err));
    if (a->wait_idle(false, nullptr, err)) {
      CHECK(all(a, 7));
    } else {
      CHECK(err.code == Code::lost && err.message.find("the file became shorter") != std::string::npos);
    }
  }
  over = true;
  shrinks.join();
  Error err;
  CHECK(file.device->usable(err));
}

// spec: R-device-io, R-close
TEST(file_closed_while_threads_use_it) {
  for (int round = 0; round < 8; ++round) {
    const Made file(7);
    std::vector<std::thread> users;
    for (int i = 0; i < 3; ++i) {
      users.emplace_back([&] {
        Error err;
        const Ref<Region> whole = file.device->memory(), a = host(kSize);
        Stamp point;
        while (whole && err.code == Code::ok) {
          if (!move(whole, a, kSize, point, err)) break;
          const Ref<Region> made = Region::alloc(file.device, 100, 0, err);
          char why[RIG_WHY] = "";
          const rig_driver& table = *file.device->table();
          const rig_result result = table.read(file.device->state(), &whole->memory(), 0, a->host(), 0, why);
          CHECK(result == RIG_OK);
        }
        CHECK(!whole || err.code == Code::lost);
      });
    }
    usleep(500);
    file.device->close();
    for (std::thread& user : users) user.join();
    CHECK(file.size() == kSize);
    CHECK(!file.device->memory());
  }
}

// spec: R-device-io
TEST(file_gives_memory_back) {
  const Made file(7);
  std::vector<std::thread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([&file, i] {
      const Ref<Region> source = host(5000), back = host(5000);
      memset(source->host(), i + 1, 5000);
      for (int turn = 0; turn < 200; ++turn) {
        Error err;
        Stamp point;
        const Ref<Region> range = Region::alloc(file.device, 5000, 0, err);
        CHECK(range && move(range, back, 5000, point, err) && back->wait_idle(false, nullptr, err) && all(back, 0));
        CHECK(move(source, range, 5000, point, err) && move(range, back, 5000, point, err));
        CHECK(back->wait_idle(false, nullptr, err) && all(back, static_cast<uint8_t>(i + 1)));
      }
    });
  }
  for (std::thread& user : users) user.join();
  file.device->timeline().wait(file.device->timeline().submitted(), -1, nullptr);
  for (int i = 0; i < 1000 && file.device->in_use() != 0; ++i) {  // the queue's thread lets go after the point
    collect_regions();
    usleep(1000);
  }
  CHECK(file.device->in_use() == 0 && file.size() == kSize);
}
