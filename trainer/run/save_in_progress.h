// A checkpoint that is written while training continues: every rank writes its part in a thread of
// its own, and rank 0's thread completes the checkpoint when all parts are written.
//
//   auto save = SaveInProgress::Start(group, store, step, write);   // all ranks, after copying
//   ... steps ...
//   if (save->IsDone(/*waits=*/false)) use(save->result());     // all ranks, between two steps
//
// All ranks must call the functions in the same order, as collectives. The threads do not use the
// group. So with several ranks a checkpoint is complete only after a call of IsDone that found all
// parts written. With one rank no call is needed.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "common/dist/process_group.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace taopd {

// The result of a save. The duration is zero on ranks other than 0.
struct SaveResult {
  int64_t step = 0;
  absl::StatusOr<std::string> path;
  absl::Duration duration;
};

class SaveInProgress {
 public:
  // Writes this rank's files into the directory, in a thread. It owns the data that it writes.
  using WriteFiles = std::function<absl::Status(const std::string& dir)>;

  // Returns when the directory exists and the threads have started. `store` is rank 0's and null on
  // other ranks; nobody else may use it before the save is done. `mini_batch` is explained at
  // CheckpointRef.
  static std::unique_ptr<SaveInProgress> Start(ProcessGroup* group, CheckpointStore* store,
                                               int64_t step, WriteFiles write,
                                               int64_t mini_batch = 0);
  // Abandons the checkpoint unless all parts are known to be written, and waits for the threads.
  ~SaveInProgress();

  // Returns whether the save is done on all ranks; the answer is the same on all of them. With
  // `waits`, waits for that and returns true.
  bool IsDone(bool waits);
  // REQUIRES: IsDone has returned true.
  const SaveResult& result() const { return *result_; }

 private:
  SaveInProgress(ProcessGroup* group, int64_t step) : group_(group), step_(step) {}
  // Returns a future of the directory, or of "" if nothing is to be written into it.
  std::future<std::string> StartWhole(CheckpointStore* store, WriteFiles write, int64_t mini_batch);
  // Tells rank 0's thread the result of the other ranks' parts.
  void FinishParts(const absl::Status& status);
  // Handles a failure of the group, after which the state of the other ranks' parts is unknown.
  bool FinishAsFailed(const absl::Status& status);

  ProcessGroup* const group_;
  const int64_t step_;
  bool knows_parts_ = false;
  std::promise<absl::Status> parts_;
  std::future<SaveResult> whole_;   // used on rank 0
  std::future<absl::Status> part_;  // used on the other ranks, if they have a part
  std::optional<SaveResult> result_;
};

}  // namespace taopd
