// Checkpoints on disk, each complete or absent. The caller decides what a checkpoint holds (a
// directory of files); this class owns names, atomicity, verification and retention, and knows
// nothing of models.
//
//   DIR/step-000120/             complete: manifest.json has every file's size and SHA-256
//   DIR/step-000120-mini-1/      the same, one mini-batch into step 121; kept while it is the
//   newest
//   DIR/.tmp-step-000130-PID/    being written; Open removes it when its writer is gone
//   DIR/.trash-step-000100-PID/  being deleted; Open removes it
//   DIR/damaged-step-000120-1/   was damaged when its step was saved anew; never deleted here
//
// Save writes into the temporary directory, syncs every file, writes manifest.json, syncs the
// directories, renames, syncs DIR and then deletes old checkpoints. A failure leaves every older
// checkpoint as it was.
//
// Not thread-safe. RunLock (trainer/run/run_lock.h) keeps other processes away.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct CheckpointOptions {
  // How many of the newest checkpoints to keep. At least 2, because the newest may be damaged.
  int64_t keep_last = 2;
  // Also keep every checkpoint whose step is divisible by this number; 0 for none.
  int64_t keep_every = 0;
};

struct CheckpointRef {
  int64_t step = 0;
  int64_t mini_batch = 0;  // of the next step that are done; 0 for a checkpoint between two steps
  std::string path;
};

class CheckpointStore {
 public:
  // Creates `dir` and removes what earlier processes left half-written or half-deleted.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& dir,
                                                               const CheckpointOptions& options);
  virtual ~CheckpointStore() = default;

  // Calls `write` to fill a temporary directory with files and directories (the name manifest.json
  // is the store's) and returns the final path. If the step exists and verifies, writes nothing and
  // returns the existing path; if it exists and is damaged, renames it to damaged-step-... first.
  // A failure to delete old checkpoints is only logged. `mini_batch`: see CheckpointRef.
  virtual absl::StatusOr<std::string> Save(
      int64_t step, const std::function<absl::Status(const std::string& temporary_dir)>& write,
      int64_t mini_batch = 0) = 0;

  // Returns the newest checkpoint of at most `max_step` steps whose files have the sizes and hashes
  // of its manifest, or nullopt if there are no checkpoints of so few steps. Damaged ones are
  // logged, counted and left alone. Returns DATA_LOSS if all of them are damaged. A limit leaves
  // out checkpoints within a step: DeleteAfter would delete them.
  virtual absl::StatusOr<std::optional<CheckpointRef>> Newest(int64_t max_step) = 0;
  absl::StatusOr<std::optional<CheckpointRef>> Newest() { return Newest(INT64_MAX); }

  // Retention leaves the checkpoints of these steps alone from now on, beside those that the
  // options keep. A second call replaces the first.
  virtual void Pin(std::set<int64_t> steps) = 0;

  // Deletes all checkpoints, complete or damaged, of later steps than `step`, and those within the
  // next one.
  virtual absl::Status DeleteAfter(int64_t step) = 0;

  // Returns all checkpoints, complete or damaged, in ascending order of step and mini-batch.
  virtual absl::StatusOr<std::vector<CheckpointRef>> List() = 0;

  // The damaged checkpoints that were met since Open.
  virtual int64_t num_damaged() const = 0;
};

}  // namespace taopd
