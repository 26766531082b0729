#include "file/file.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "file/ranges.h"
#include "region.h"
#include "work_queue.h"

namespace rig {
namespace {

constexpr uint64_t kStage = 1 << 20;  // bytes of a piece between two ranges of the file

class FileQueue : public WorkQueue {
 public:
  FileQueue(const FileDeviceOptions& options, Timeline* timeline)
      : WorkQueue(timeline, "rig-file"), writable_(options.writable), ranges_(options.fd, options.nbytes) {}

  bool writable() const { return writable_; }
  FileRanges& ranges() { return ranges_; }

 protected:
  bool execute(const Entry& entry, std::string& failed) override;

 private:
  bool copy(const OpenFile& file, const rig_part& part, std::string& why);

  bool writable_;
  FileRanges ranges_;
  std::unique_ptr<uint8_t[]> stage_;
};

// Memory of the file has an object, its range; memory that the device maps has none, but an address.
const FileRange* range_of(const rig_end& end) { return static_cast<const FileRange*>(end.object); }
uint64_t offset_of(const rig_end& end) { return range_of(end)->offset + end.offset; }
void* bytes_of(const rig_end& end) { return reinterpret_cast<void*>(end.address); }

bool FileQueue::copy(const OpenFile& file, const rig_part& p, std::string& why) {
  if (!range_of(p.src) && !range_of(p.dst)) {
    memmove(bytes_of(p.dst), bytes_of(p.src), p.length);
    return true;
  }
  if (!range_of(p.dst)) return file.read(offset_of(p.src), bytes_of(p.dst), p.length, why);
  if (!range_of(p.src)) return file.write(offset_of(p.dst), bytes_of(p.src), p.length, why);
  if (!stage_) stage_ = std::make_unique<uint8_t[]>(kStage);
  for (uint64_t done = 0; done < p.length; done += kStage) {
    const uint64_t n = std::min(kStage, p.length - done);
    if (!file.read(offset_of(p.src) + done, stage_.get(), n, why)) return false;
    if (!file.write(offset_of(p.dst) + done, stage_.get(), n, why)) return false;
  }
  return true;
}

bool FileQueue::execute(const Entry& entry, std::string& failed) {
  timeline().work_on(sched_getcpu());
  const Ref<OpenFile> file = ranges_.file();  // there until the device's queue has ended
  for (uint32_t i = 0; failed.empty() && i < entry.part_count; ++i) copy(*file, entry.parts()[i], failed);
  return true;
}

FileQueue& queue(void* state) { return *static_cast<FileQueue*>(state); }

void say(char* why, const std::string& text) { snprintf(why, RIG_WHY, "%s", text.c_str()); }

void describe(void*, rig_device_info* info) {
  snprintf(info->kind, sizeof info->kind, "file");
  info->capabilities = RIG_CAN_BORROW | RIG_CAN_COPY;
  info->alignment = 4096;
}

rig_result alloc(void* state, uint64_t nbytes, uint32_t, rig_memory* memory, char* why) {
  if (!queue(state).writable()) {
    say(why, "it is open for reading only, no memory is made in it");
    return RIG_REFUSED;
  }
  std::string reason;
  FileRange* range = queue(state).ranges().add(nbytes, reason);
  if (range == nullptr && !queue(state).ranges().file()) {
    say(why, "it was closed");
    return RIG_LOST;
  }
  if (range == nullptr) {
    say(why, "out of memory: " + std::to_string(nbytes) + " bytes asked for, " + reason);
    return RIG_OUT_OF_MEMORY;
  }
  *memory = {range, 0, nullptr};
  return RIG_OK;
}

void free_memory(void* state, rig_memory* memory, uint64_t) {
  queue(state).ranges().remove(static_cast<FileRange*>(memory->object));
}

rig_result transfer(void* state, const rig_memory* memory, uint64_t offset, void* into, const void* from, uint64_t nbytes, char* why) {
  const Ref<OpenFile> file = queue(state).ranges().file();
  if (!file) {
    say(why, "it was closed");
    return RIG_LOST;
  }
  const uint64_t at = static_cast<const FileRange*>(memory->object)->offset + offset;
  std::string reason;
  if (into != nullptr ? file->read(at, into, nbytes, reason) : file->write(at, from, nbytes, reason)) return RIG_OK;
  say(why, reason);
  return RIG_REFUSED;
}

rig_result read(void* state, const rig_memory* memory, uint64_t offset, void* into, uint64_t nbytes, char* why) {
  return nbytes == 0 ? RIG_OK : transfer(state, memory, offset, into, nullptr, nbytes, why);
}

rig_result write(void* state, const rig_memory* memory, uint64_t offset, const void* from, uint64_t nbytes, char* why) {
  return nbytes == 0 ? RIG_OK : transfer(state, memory, offset, nullptr, from, nbytes, why);
}

constexpr const char* kRunsNothing = "a file runs nothing, it only copies";

rig_result load_image(void*, const uint8_t*, uint64_t, void**, char* why) {
  say(why, kRunsNothing);
  return RIG_REFUSED;
}
void unload_image(void*, void*) {}

rig_result resolve(void*, void*, const char*, uint64_t*, uint64_t*, char* why) {
  say(why, kRunsNothing);
  return RIG_REFUSED;
}

rig_result check_part(void*, const rig_part* part, char* why) {
  if (part->kind == RIG_COPY) return RIG_OK;
  say(why, kRunsNothing);
  return RIG_REFUSED;
}

rig_result prepare(void*, const rig_work*, void** prepared, char*) {
  *prepared = nullptr;  // the queue takes parts as they are
  return RIG_OK;
}
void release(void*, void*) {}

rig_result submit(void* state, const rig_work* work, char* why) {
  if (queue(state).push(*work)) return RIG_OK;
  say(why, "it was closed");
  return RIG_LOST;
}

void stop(void* state) {
  queue(state).stop();
  queue(state).ranges().close();
}
void destroy(void* state) {
  queue(state).ranges().close();  // a fork's child keeps the thread's name of the queue, and may find it half stopped
  queue(state).release();
}

rig_result borrow(void*, const rig_memory* memory, uint64_t, rig_memory* mapped, char*) {
  *mapped = {nullptr, reinterpret_cast<uint64_t>(memory->host), memory->host};
  return RIG_OK;
}

const rig_driver kDriver{RIG_DRIVER_VERSION, sizeof(rig_driver), describe,   alloc,        free_memory, read,
                         write,              load_image,         unload_image, resolve,    check_part,  prepare,
                         release,            submit,             stop,       destroy,      borrow,      nullptr};

}  // namespace

Ref<Device> make_file_device(const FileDeviceOptions& options) {
  auto* timeline = new Timeline(options.name);
  auto* q = new FileQueue(options, timeline);
  q->retain();  // the device's, for as long as its memory may be given back
  if (!q->start()) {
    q->release();
    return {};
  }
  Ref<Device> device(new Device(options.name, &kDriver, q, timeline));
  device->set_memory(Region::given(device, {q->ranges().whole(), 0, nullptr}, options.nbytes, options.writable));
  return device;
}

}  // namespace rig
