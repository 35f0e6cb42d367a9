// Whether a run fits on the disk of its run.dir: the checkpoints that it holds at once, the one
// that is being written, and the exported model. No LibTorch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace taopd {

struct DiskPlan {
  int64_t checkpoint_bytes = 0;  // weights, moments and float32 copies
  int64_t model_bytes = 0;       // weights
  // Kept, pinned and being written.
  int64_t num_checkpoints = 1;
  // Of checkpoints and a model that a resumed run has already: they are part of the total.
  int64_t held_bytes = 0;
  // Of an old run that this one replaces and deletes before it saves anything.
  int64_t freed_bytes = 0;

  int64_t total_bytes() const { return num_checkpoints * checkpoint_bytes + model_bytes; }
};

// Compares the plan with the free bytes of the disk. `policy` is trainer.disk_plan:
//   off      nothing is compared;
//   warn     a run that does not fit is logged, and refused if not even one checkpoint fits;
//   refuse   a run that does not fit is refused.
// A refusal is RESOURCE_EXHAUSTED; it names the directory, the bytes and what helps.
absl::Status CheckDiskPlan(const DiskPlan& plan, const std::string& run_dir, int64_t free_bytes,
                           const std::string& policy);

// The attempts to write something large to the disk of a directory. After a failure the next one is
// worth its cost only where there is more room. Not thread-safe.
class DiskAttempts {
 public:
  explicit DiskAttempts(std::string dir) : dir_(std::move(dir)) {}

  // Whether writing `bytes` may succeed where the last attempt has failed: always after a success,
  // else if they fit, or if there is more room than then. The latter is for file systems that
  // compress.
  bool MayFit(int64_t bytes) const;
  // The attempt to write `bytes` has failed, or was not made because they do not fit. Returns the
  // error with the room that is needed and the room that there is.
  absl::Status Failed(int64_t bytes, const absl::Status& error);
  void Succeeded() {
    free_after_failure_.reset();
    num_failures_ = 0;
  }
  int64_t num_failures() const { return num_failures_; }  // in a row

 private:
  const std::string dir_;
  std::optional<int64_t> free_after_failure_;
  int64_t num_failures_ = 0;
};

}  // namespace taopd
