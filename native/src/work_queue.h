// A queue of submissions that one native thread works off in order: what devices without a queue of their own are made of.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "fork.h"
#include "ref.h"
#include "rig/driver.h"
#include "timeline.h"

namespace rig {

class WorkQueue : public RefCounted {
 public:
  // `thread_name` has at most 15 characters and is never freed.
  WorkQueue(Timeline* timeline, const char* thread_name) : timeline_(timeline), thread_name_(thread_name), ring_(16) {}

  bool start();                     // false if the system gives no thread
  bool push(const rig_work& work);  // false if the thread has ended
  void stop();                      // after the work that was pushed; may be called by the thread itself, or a fork's child

  // Whether this is the process that made the queue, not a fork's child, where its thread is missing.
  bool here() const { return generation_ == fork_generation(); }

 protected:
  // One submission in the queue. Its vectors keep their room when the slot is used again.
  struct Entry {
    const rig_part* constant_parts = nullptr;
    const uint8_t* constant_params = nullptr;
    uint32_t part_count = 0;
    uint64_t value = 0;
    void* keep = nullptr;
    std::vector<rig_part> own_parts;
    std::vector<uint64_t> own_params;
    std::vector<rig_point> waits;

    const rig_part* parts() const { return constant_parts ? constant_parts : own_parts.data(); }
    const uint8_t* params() const {
      return constant_parts ? constant_params : reinterpret_cast<const uint8_t*>(own_params.data());
    }
  };

  // Do one submission, on the queue's thread. `failed` says why what it waits for was not done, then its parts must not
  // be done either; set it where they cannot be. False if the device is lost, because of `failed`.
  virtual bool execute(const Entry& entry, std::string& failed) = 0;

  // For devices with a queue of their own, whose work goes on when execute returns. All on the queue's thread:
  // Say that a submission is over, or will be.
  virtual void finish(Entry& entry, const std::string& failed);
  // Let go of work that is over; called at every ring. False if the device is lost, because of `reason`.
  virtual bool tend(std::string& reason);
  // Whether work goes on, so that the thread must not end; its end rings.
  virtual bool running() const { return false; }
  // The thread's last call.
  virtual void leave() {}
  // From any thread, once there is something to tend.
  void ring();

  Timeline& timeline() const { return *timeline_; }

 private:
  static void* enter(void* self);
  void work();
  void take(Entry& entry);  // the first of the ring, of which there is one
  bool wait_for_work(std::string& reason);  // false if there will be none, because of a loss if there is a reason
  std::string wait_for_points(const Entry& entry) const;
  void lose(const std::string& reason, void* keep);  // nothing queued will be done

  Timeline* timeline_;
  const char* thread_name_;
  std::mutex lock_;    // the ring
  bool over_ = false;  // the thread takes no more from the ring
  std::vector<Entry> ring_;
  uint64_t head_ = 0, tail_ = 0;
  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  pthread_t thread_{};
  const uint32_t generation_ = fork_generation();
};

}  // namespace rig
