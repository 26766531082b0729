// A loaded program: its memory, its code, and one tape per copy that a run executes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fork.h"
#include "split_rule.h"
#include "submit.h"
#include "tape.h"

namespace rig {

struct FrameInput {
  Region* region = nullptr;  // null for host memory that no other device ever touches
  Device* device = nullptr;
  uint64_t offset = 0;  // within the region
  uint64_t address = 0; // of the first byte on its own device
  uint64_t nbytes = 0;
  bool writable = true;
};

struct Frame {
  const FrameInput* inputs = nullptr;
  size_t input_count = 0;
  const int64_t* ints = nullptr;
  size_t int_count = 0;
  Stamp* step_points = nullptr;  // one per Submit step, or null
  const rig_point* waits = nullptr;
  size_t wait_count = 0;
  bool pinned = false;  // the caller pins the inputs' regions
};

class Program : public Keep {
 public:
  // Build the tapes of a checked plan: fills the holes, prepares the submissions. Null and err if it is refused.
  static Ref<Program> build(ProgramPlan plan, Error& err);

  // Run once. On success ends() holds the run's ends until the next run.
  // `ends` receives one stamp per device, with value 0 for a device that ran nothing; it may be null.
  bool run(const Frame& frame, Gate* gate, std::vector<Stamp>* ends, Error& err);

  const ProgramPlan& plan() const { return plan_; }
  uint32_t submit_steps() const { return submit_steps_; }
  bool input_written(size_t i) const { return input_written_[i]; }
  bool memory_written(size_t i) const { return memory_written_[i]; }

  // Keep runs out until resume() on the same thread; `ends` receives the last point of all runs on each device, with
  // value 0 for a device that never ran. Invalid within a run on this thread.
  bool pause(Gate* gate, std::vector<Stamp>& ends, Error& err);
  // Let runs in again; false if this thread holds no pause.
  bool resume();
  // Whether only the host works for it, so that every run is done when it returns.
  bool host_only() const { return host_only_; }
  // Whether its next run is long by estimate, or of unknown length.
  bool long_by_estimate() const;
  bool running_on_this_thread() const;

 protected:
  ~Program() override;

 private:
  friend class Builder;
  struct Run;  // the state of one run
  struct StepInfo {
    std::string path;       // steps[3].body[0]
    uint32_t top = 0;       // the top-level step's index
    int32_t point = -1;     // index among the Submit steps
  };
  struct InputMapping {
    uint32_t input;
    uint32_t device;
  };
  struct LoopState {
    int64_t trips = 0;
    int64_t index = 0;
  };
  struct Block {
    std::unique_ptr<uint64_t[]> words;
  };

  bool check_frame(const Frame& frame, Error& err);
  bool enter(Gate* gate, Error& err);
  void leave();
  bool start(Run& run);
  bool execute(Run& run);
  bool run_host_begin(Run& run, const Record& r);
  void run_host_end(Run& run, const Record& r);
  bool run_submit(Run& run, const Record& r);
  bool run_move(Run& run, const Record& r);
  bool run_copy(Run& run, const Record& r);
  bool run_launch(Run& run, const Record& r);
  void run_split_op(Split& split);
  bool run_patches(Run& run, const Record& r);
  bool run_ref(Run& run, const Record& r);
  bool enter_loop(Run& run, const LoopOp& loop, bool& more);
  bool loop_goes_on(Run& run, const LoopOp& loop, bool& more);
  bool wait_ints(Run& run, bool uses);
  bool eval_end(Run& run, const End& end, uint64_t length, const char* what, int64_t part, uint64_t& offset);
  bool eval_geometry(Run& run, LaunchOp& op, const Device& device);
  bool add_names(Run& run, const Names& names);
  bool run_calls(Run& run, const Record& r);
  bool poll(Run& run, uint32_t work);
  void note_time(int64_t ns, const Tape& tape);
  Stamp& last(Run& run, uint32_t device);

  ProgramPlan plan_;
  std::vector<StepInfo> steps_;
  std::vector<Block> blocks_;
  std::unique_ptr<Tape> tapes_[2];  // the second null if both copies run the first
  std::vector<InputMapping> mappings_;
  std::vector<bool> input_written_;
  std::vector<bool> memory_written_;
  std::vector<LoopState> loop_states_;
  uint32_t submit_steps_ = 0;
  int32_t host_index_ = -1;  // the host's index among the devices, -1 if it is none of them
  bool host_only_ = true;
  bool has_word_loops_ = false;
  bool waits_for_copies_ = false;

  // Of runs, under run_lock_.
  ForkLock run_lock_;
  std::atomic<uint64_t> runner_{0};  // the thread that runs it
  uint64_t runs_ = 0;
  std::vector<Stamp> copy_last_[2];   // per device, the last point of the last run on the copy
  std::vector<Stamp> ever_last_;      // per device, the last point of all runs
  std::vector<rig_memory> mapped_;    // per mapping, this run's inputs as their devices see them
  std::vector<Named> named_;          // scratch
  WaitList waits_;                    // scratch
  std::vector<FrameInput> inputs_;    // this run's
  static constexpr int kTimes = 5;
  int64_t times_[kTimes] = {};
  int64_t sorted_[kTimes] = {};
  std::atomic<int64_t> estimate_{-1};
  int64_t split_ns_ = 0;       // of a run's split launches on one thread
  SplitRule split_rule_;
  bool pool_entered_ = false;  // this run told the pool of its work
  uint64_t timed_ = 0;     // runs that ended well
  uint64_t times_at_ = 0;  // of those, measured
};

}  // namespace rig
