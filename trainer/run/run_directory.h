// The directory of one run. It grants the right to write, finds the checkpoint of a resumed run,
// and lets a new run replace an old one.
//
// An old run does not change until the new one has everything that it needs (data, student,
// teacher, ports). Then the old files are moved into RUN_DIR/.replaced, and the new run begins when
// its config.yaml is written. Before that moment every failure, and every start after a crash,
// restores the old run; after it, .replaced is deleted. Files that no run makes are never touched.
//
// A run that starts because there is nothing to resume deletes nothing: the files of an earlier run
// are moved to RUN_DIR/.kept in the same way, and then to RUN_DIR/earlier-1, earlier-2, ...
//
// Use, from one thread:
//
//   RunDirectory::Open(...)     lock, and the checkpoint to continue from
//   ...                         everything that can fail
//   MoveOldRunAside()           only for a new run
//   ...                         open the new files; write config.yaml last
//   DeleteOldRun()
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/run/run_lock.h"

namespace taopd {

// The treatment of an existing run in run.dir. At most one of resume and overwrite is set.
struct StartMode {
  // Continue from the newest complete checkpoint.
  bool resume = false;
  // With resume, start a new run if there is no checkpoint.
  bool may_start = false;
  // Replace the run by a new one.
  bool overwrite = false;
  // With resume, the paths of settings and names of facts that may differ from the checkpoint
  // although they are declared fixed (resume_check.h).
  std::vector<std::string> allow_change = {};
  // Check everything up to the first step, and change nothing on the disk. Excludes resume.
  bool dry_run = false;
};

class RunDirectory {
 public:
  // Creates and locks `path`; with mode.resume finds the newest complete checkpoint. Returns
  //   FAILED_PRECONDITION  if another process works there, if a run exists and `mode` says
  //                        neither resume nor overwrite, if there is nothing to resume and `mode`
  //                        does not say may_start, or if a file with the name of one of a run's
  //                        files exists that no run has made;
  //   DATA_LOSS            if all checkpoints are damaged.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Open(const std::string& path,
                                                            const StartMode& mode,
                                                            const CheckpointOptions& checkpoints);
  // Returns the error with which Open would refuse a new run, and changes nothing. REQUIRES:
  // mode.resume is false.
  static absl::Status Check(const std::string& path, const StartMode& mode);
  // Restores the old run unless DeleteOldRun was called.
  ~RunDirectory();

  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // Returns the checkpoint from which to continue, or nullopt for a new run.
  const std::optional<CheckpointRef>& checkpoint() const { return checkpoint_; }

  // Moves the files of an old run aside. REQUIRES: checkpoint() is nullopt.
  absl::Status MoveOldRunAside();
  // Deletes the files that MoveOldRunAside moved or, if the mode was resume, gives them their
  // permanent name. A failure is only logged, because the new run has begun.
  void DeleteOldRun();
  // Returns whether MoveOldRunAside and DeleteOldRun keep the old run.
  bool keeps_old_run() const { return keeps_old_run_; }

  // Returns the checkpoint store. The first call opens it and creates RUN_DIR/checkpoints. The
  // RunDirectory owns it.
  absl::StatusOr<CheckpointStore*> Checkpoints();

 private:
  RunDirectory(std::string path, const CheckpointOptions& checkpoints)
      : path_(std::move(path)), checkpoint_options_(checkpoints) {}

  // Returns the directory to which MoveOldRunAside moves the old run.
  std::string AsideDir() const;

  const std::string path_;
  const CheckpointOptions checkpoint_options_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<CheckpointStore> store_;
  std::optional<CheckpointRef> checkpoint_;
  bool keeps_old_run_ = false;
  bool old_run_is_aside_ = false;
};

}  // namespace taopd
