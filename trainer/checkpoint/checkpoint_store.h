// Checkpoints on disk: complete or not there. Content is the caller's (a directory of files); this
// class owns names, atomicity, verification and retention. Knows nothing of models.
//
//   DIR/step-000120/             complete: holds manifest.json with every file's size and SHA-256
//   DIR/.tmp-step-000130-PID/    being written; removed at Open when its writer is gone
//   DIR/.trash-step-000100-PID/  being deleted; removed at Open
//   DIR/damaged-step-000120-1/   was damaged when its step was saved anew; never deleted here
//
// Protocol of Save: write into the temporary directory, fsync every file, manifest.json (written
// last), fsync of the directories, rename, fsync of DIR, then retention. A failure leaves every
// older checkpoint as it was.
//
// Threads: one writer thread. Processes: RunLock (trainer/run/run_lock.h) allows one writer per run directory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct CheckpointOptions {
  int64_t keep_last = 2;   // at least 2: the newest may be the damaged one
  int64_t keep_every = 0;  // besides, every step divisible by this; 0 = none
};

struct CheckpointRef {
  int64_t step = 0;
  std::string path;
};

class CheckpointStore {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& dir,
                                                               const CheckpointOptions& options);
  virtual ~CheckpointStore() = default;

  // `write` fills the directory it is given (with files and directories; "manifest.json" is the
  // store's). Returns the final path. Saving a step that exists replaces nothing and returns the
  // existing path when it verifies; when it does not, it is renamed to damaged-step-... first.
  // Retention comes last, and its failure is logged only.
  virtual absl::StatusOr<std::string> Save(
      int64_t step, const std::function<absl::Status(const std::string& temporary_dir)>& write) = 0;
  // Newest checkpoint whose manifest verifies (sizes and hashes); damaged ones are logged, counted
  // and left alone. nullopt when there is none at all; DATA_LOSS when there are only damaged ones.
  virtual absl::StatusOr<std::optional<CheckpointRef>> Newest() = 0;
  // Complete or damaged, rising by step.
  virtual absl::StatusOr<std::vector<CheckpointRef>> List() = 0;
  virtual int64_t num_damaged() const = 0;
};

}  // namespace taopd
