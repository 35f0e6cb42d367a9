// Checks that a run fits on the disk of its run.dir: the checkpoints that it keeps, the one that is
// being written, the exported model, and the weights that servers of rollouts read. It does not
// depend on LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace taopd {

// Prefix of the directories in run.dir through which servers of rollouts get the weights. A start
// removes those of an earlier process.
inline constexpr char kPublishedPrefix[] = "weights-rank-";
// Returns the bytes of these directories.
int64_t PublishedBytesIn(const std::string& run_dir);

struct DiskPlan {
  int64_t checkpoint_bytes = 0;  // weights, moments and float32 copies
  int64_t model_bytes = 0;       // weights
  // Checkpoints kept, pinned and being written.
  int64_t num_checkpoints = 1;
  // The number of versions of the weights that exist at a time for rollout.endpoints, each of
  // model_bytes.
  int64_t num_published = 0;
  // Their directory if it is on another disk than run.dir; the total then leaves them out.
  std::string weights_dir;
  // The bytes of the checkpoints and the model that a resumed run already has; they are part of the
  // total.
  int64_t held_bytes = 0;
  // The bytes of an old run that this run deletes before it saves anything.
  int64_t freed_bytes = 0;

  int64_t published_bytes() const { return num_published * model_bytes; }
  bool publishes_in_run_dir() const { return num_published > 0 && weights_dir.empty(); }
  int64_t total_bytes() const {
    return num_checkpoints * checkpoint_bytes + model_bytes +
           (publishes_in_run_dir() ? published_bytes() : 0);
  }
};

// The facts of a run that its disk plan depends on.
struct DiskUse {
  int64_t weight_bytes = 0;  // of the trained parameters
  int64_t state_bytes = 0;   // of the optimizer
  CheckpointOptions checkpoints = {};
  int64_t max_pinned = 0;  // number of checkpoints that are kept in addition
  int64_t total_steps = 0;
  int64_t num_published = 0;  // DiskPlan::num_published
  std::string run_dir = {};
  std::string weights_dir = {};  // rollout.weights_dir
};

// Plans a new run. `held_bytes` and `freed_bytes` depend on the directory and are left at 0.
DiskPlan PlanDisk(const DiskUse& use);

// Returns two lines: the bytes that the run will hold, and the free bytes, which may be unknown. A
// third line is about the disk of plan.weights_dir, if there is one.
std::string DiskPlanText(const DiskPlan& plan, const std::string& run_dir,
                         std::optional<int64_t> free_bytes);

// Compares the plan with the free bytes of the disk. A run is refused if not even one checkpoint
// fits, or not even one version of the weights besides it. A run that does not fit as a whole is
// refused if `refuses` is true, and logged otherwise. A refusal is RESOURCE_EXHAUSTED; its message
// names the directory, the bytes and the remedies.
absl::Status CheckDiskPlan(const DiskPlan& plan, const std::string& run_dir, int64_t free_bytes,
                           bool refuses);
// Does the same for the disk of plan.weights_dir. REQUIRES: it is not empty.
absl::Status CheckWeightsDisk(const DiskPlan& plan, int64_t free_bytes, bool refuses);

// Tracks the attempts to write something large to the disk of a directory. After a failure, another
// attempt is worth its cost only if there is more free space. Not thread-safe.
class DiskAttempts {
 public:
  explicit DiskAttempts(std::string dir) : dir_(std::move(dir)) {}

  // Returns whether an attempt to write `bytes` may succeed: the last attempt succeeded, the bytes
  // fit, or there is more free space than after the last failure. The third case is for file
  // systems that compress.
  bool MayFit(int64_t bytes) const;
  // Records that an attempt to write `bytes` failed, or was not made because they do not fit.
  // Returns the error with the required and the free bytes.
  absl::Status Failed(int64_t bytes, const absl::Status& error);
  void Succeeded() {
    free_after_failure_.reset();
    num_failures_ = 0;
  }
  int64_t num_failures() const { return num_failures_; }  // consecutive failures

 private:
  const std::string dir_;
  std::optional<int64_t> free_after_failure_;
  int64_t num_failures_ = 0;
};

}  // namespace taopd
