// The queue of an OpenCL device: one native thread hands submissions over to the platform's in-order queue.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "code.h"
#include "context.h"
#include "opencl.h"
#include "work_queue.h"

namespace rig::opencl {

class Queue : public WorkQueue {
 public:
  Queue(const OpenClOptions& options, const Found& found, Context* context, Timeline* timeline);

  // Make the platform's queues and start the thread; false and why if that cannot be.
  bool open(std::string& why);

  Context& context() const { return *context_; }
  DeviceId* device() const { return device_; }
  OpenClMemory memory() const { return memory_; }
  const uint64_t* item_limits() const { return item_limits_; }
  uint64_t alignment() const { return alignment_; }
  bool reaches_host() const { return reaches_host_; }
  bool native_kernels() const { return native_kernels_; }
  // For transfers outside the order of submissions, whoever makes them; each is waited for.
  QueueId* transfers() const { return transfers_; }

 protected:
  ~Queue() override;
  bool execute(const Entry& entry, std::string& failed) override;
  void finish(Entry& entry, const std::string& failed) override;
  bool tend(std::string& reason) override;
  bool running() const override { return flying_.load(std::memory_order_acquire) != 0; }
  void leave() override;

 private:
  // A submission that was handed over, until its end was seen and its keep let go of.
  struct Flight {
    Queue* queue = nullptr;
    uint64_t value = 0;
    void* keep = nullptr;
    EventId* event = nullptr;
    Flight* next = nullptr;
    int32_t status = 0;
    bool landed = false;
  };
  static void on_event(EventId* event, int32_t status, void* flight);
  void land(Flight* flight, int32_t status);

  bool enqueue(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed);
  bool launch(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed);
  bool set_pointer(const Kernel& kernel, uint32_t index, uint64_t word, std::vector<MemId*>& parts, std::string& failed) const;
  bool copy(const rig_part& part, EventId** event, std::string& failed);
  bool fill(const rig_part& part, const uint8_t* params, EventId** event, std::string& failed);
  bool done(Status status, const char* what, std::string& failed) const;

  Context* context_;
  DeviceId* device_;
  OpenClMemory memory_;
  int64_t fail_at_;
  uint64_t alignment_ = 128;
  uint64_t item_limits_[3] = {1, 1, 1};
  bool reaches_host_ = false;
  bool native_kernels_ = false;
  QueueId* queue_ = nullptr;
  QueueId* transfers_ = nullptr;
  EventId* event_ = nullptr;  // of the submission that is handed over
  std::vector<uint64_t> blob_;  // a fill's function and words

  std::mutex flights_lock_;
  Flight* first_ = nullptr;  // handed over, in order
  Flight* last_ = nullptr;
  Flight* over_ = nullptr;  // to be tended
  Flight* spare_ = nullptr;
  std::string broken_;  // why the device is lost
  std::atomic<uint32_t> flying_{0};
};

}  // namespace rig::opencl
