// Stores checkpoints on disk, each complete or absent. The caller decides what a checkpoint
// contains (a directory of files); this class is responsible for names, atomicity, verification and
// retention, and does not know about models.
//
//   DIR/step-000120/             complete: manifest.json has every file's size and SHA-256
//   DIR/step-000120-mini-1/      the same, one mini-batch into step 121; kept while it is the
//                                newest
//   DIR/.tmp-step-000130-PID/    being written; Open removes it when its writer is gone
//   DIR/.trash-step-000100-PID/  being deleted; Open removes it
//   DIR/damaged-step-000120-1/   was damaged when its step was saved again; never deleted here
//
// Save writes into the temporary directory, syncs every file, writes manifest.json, syncs the
// directories, renames the directory, syncs DIR and then deletes old checkpoints. A failure leaves
// every older checkpoint untouched.
//
// Not thread-safe. RunLock (trainer/run/run_lock.h) keeps other processes away.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct CheckpointOptions {
  // The number of newest checkpoints to keep. At least 2, because the newest may be damaged.
  int64_t keep_last = 2;
  // Checkpoints whose step is divisible by this number are kept as well; 0 means none.
  int64_t keep_every = 0;
};

struct CheckpointRef {
  int64_t step = 0;
  int64_t mini_batch = 0;  // mini-batches done of the next step; 0 between two steps
  std::string path;
};

// Returns all checkpoints in a directory, complete or damaged, in ascending order of step and
// mini-batch.
absl::StatusOr<std::vector<CheckpointRef>> ListCheckpoints(const std::string& dir);

class CheckpointStore {
 public:
  // Creates `dir` and removes half-written and half-deleted checkpoints of earlier processes.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& dir,
                                                               const CheckpointOptions& options);

  // Calls `write` to fill a temporary directory with files and directories (the name manifest.json
  // is reserved) and returns the final path. If the checkpoint exists and verifies, writes nothing
  // and returns the existing path; if it exists and is damaged, renames it to damaged-step-...
  // first. A failure to delete old checkpoints is only logged. `mini_batch` is explained at
  // CheckpointRef.
  absl::StatusOr<std::string> Save(
      int64_t step, const std::function<absl::Status(const std::string& temporary_dir)>& write,
      int64_t mini_batch = 0);

  // Returns the newest checkpoint of at most `max_step` steps whose files have the sizes and hashes
  // in its manifest, or nullopt if there is no checkpoint up to that step. Damaged checkpoints are
  // logged and left alone; if all are damaged, returns DATA_LOSS. With a limit, checkpoints within
  // a step do not count, because DeleteAfter would delete them.
  absl::StatusOr<std::optional<CheckpointRef>> Newest(int64_t max_step = INT64_MAX);

  // From now on, retention also keeps the checkpoints of these steps. Each call replaces the steps
  // of the previous one.
  void Pin(std::set<int64_t> steps) { pinned_steps_ = std::move(steps); }

  // Deletes all checkpoints, complete or damaged, after `step`, including those within the next
  // step.
  absl::Status DeleteAfter(int64_t step);

  absl::StatusOr<std::vector<CheckpointRef>> List() const { return ListCheckpoints(dir_); }

 private:
  CheckpointStore(std::string dir, const CheckpointOptions& options)
      : dir_(std::move(dir)), options_(options) {}
  absl::Status RemoveLeftovers();
  void RecordDamage(const std::string& path, const absl::Status& status);
  absl::Status MoveAside(const std::string& path);
  absl::Status DeleteOld(const std::string& just_saved);
  absl::Status Delete(const std::string& path);

  const std::string dir_;
  const CheckpointOptions options_;
  std::set<int64_t> pinned_steps_;
  // The paths where checkpoints are damaged; each is logged once. A path leaves the set when its
  // checkpoint is moved or deleted, because its step may be saved there again.
  std::set<std::string> damaged_;
};

}  // namespace taopd
