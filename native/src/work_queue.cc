#include "work_queue.h"

#include <signal.h>

#include <cstring>
#include <utility>

#include "device.h"
#include "fork.h"
#include "futex.h"

namespace rig {

bool WorkQueue::start() {
  watch_forks();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  retain();  // the thread's
  const bool ok = pthread_create(&thread_, nullptr, enter, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ok) {
    pthread_setname_np(thread_, thread_name_);
  } else {
    release();
  }
  return ok;
}

void* WorkQueue::enter(void* self) {
  auto* queue = static_cast<WorkQueue*>(self);
  queue->work();
  queue->leave();
  queue->release();
  return nullptr;
}

bool WorkQueue::push(const rig_work& work) {
  {
    std::lock_guard lock(lock_);
    if (over_) return false;
    if (tail_ - head_ == ring_.size()) {
      std::vector<Entry> more(ring_.size() * 2);
      for (uint64_t i = head_; i != tail_; ++i) more[i % more.size()] = std::move(ring_[i % ring_.size()]);
      ring_ = std::move(more);
    }
    Entry& e = ring_[tail_ % ring_.size()];
    e.part_count = work.part_count;
    e.value = work.value;
    e.keep = work.keep;
    e.waits.assign(work.waits, work.waits + work.wait_count);
    if (work.constant) {
      e.constant_parts = work.parts;
      e.constant_params = work.params;
    } else {
      e.own_parts.assign(work.parts, work.parts + work.part_count);
      e.own_params.resize((work.params_size + 7) / 8);
      if (work.params_size != 0) memcpy(e.own_params.data(), work.params, work.params_size);
      e.constant_parts = nullptr;
    }
    ++tail_;
  }
  ring();
  return true;
}

void WorkQueue::ring() {
  // The thread sets sleeping_ and then looks under a lock at what this is about: it sees that, or this sees sleeping_.
  if (sleeping_.load(std::memory_order_seq_cst)) {
    bell_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(bell_, 1);
  }
}

bool WorkQueue::wait_for_work(std::string& reason) {
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    sleeping_.store(true, std::memory_order_seq_cst);
    if (!tend(reason)) return false;
    {
      std::lock_guard lock(lock_);
      if (head_ != tail_) break;
      if (stopping_.load(std::memory_order_acquire) && !running()) {
        over_ = true;
        return false;
      }
    }
    futex_wait(bell_, bell, -1);
  }
  sleeping_.store(false, std::memory_order_seq_cst);
  return true;
}

bool WorkQueue::tend(std::string&) { return true; }

void WorkQueue::finish(Entry& entry, const std::string& failed) {
  if (!failed.empty()) services()->fail(timeline_, entry.value, failed.c_str());
  services()->reach(timeline_, entry.value);
  if (void* keep = std::exchange(entry.keep, nullptr)) services()->done(keep);
}

void WorkQueue::take(Entry& entry) {
  std::lock_guard lock(lock_);
  std::swap(entry, ring_[head_ % ring_.size()]);
}

std::string WorkQueue::wait_for_points(const Entry& entry) const {
  for (const rig_point& p : entry.waits) {
    const auto& other = *static_cast<const Timeline*>(p.timeline);
    if (&other == timeline_) {
      if (std::string failed = other.failure(p.value); !failed.empty()) return failed;
    } else if (services()->wait(p) != 0) {
      Error err;
      lost_error(other, p.value, err);
      return err.message;
    }
  }
  return {};
}

void WorkQueue::work() {
  std::string reason;
  while (wait_for_work(reason)) {
    Entry entry;
    take(entry);
    std::string failed = wait_for_points(entry);
    if (!execute(entry, failed)) {
      lose(failed, std::exchange(entry.keep, nullptr));
      return;
    }
    finish(entry, failed);
    // Give the vectors' room back to the slot, then the slot to the queue.
    std::lock_guard lock(lock_);
    std::swap(entry, ring_[head_ % ring_.size()]);
    ++head_;
  }
  if (!reason.empty()) lose(reason, nullptr);
}

void WorkQueue::lose(const std::string& reason, void* keep) {
  services()->lose(timeline_, reason.c_str());
  if (keep) services()->done(keep);
  std::lock_guard lock(lock_);
  over_ = true;
  for (; head_ != tail_; ++head_) {  // the keep of the entry that failed was taken out
    if (void* left = std::exchange(ring_[head_ % ring_.size()].keep, nullptr)) services()->done(left);
  }
}

void WorkQueue::stop() {
  if (!here()) return;
  stopping_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(bell_, 1);
  // The last name of a device may be dropped by its own thread, as it lets go of finished work.
  if (pthread_equal(pthread_self(), thread_)) {
    pthread_detach(thread_);
  } else {
    pthread_join(thread_, nullptr);
  }
}

}  // namespace rig
