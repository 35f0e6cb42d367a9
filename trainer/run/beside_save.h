// A checkpoint that is written while the training goes on: every rank writes its part in a thread
// of its own, and rank 0's thread completes the checkpoint when all parts are there.
//
//   auto save = BesideSave::Start(group, store, step, write);   // all ranks, after copying
//   ... steps ...
//   if (save->IsDone(/*waits=*/false)) use(save->result());     // all ranks, between two steps
//
// All ranks call the functions in the same order, as collectives; the threads use the group never.
// So with several ranks a checkpoint is complete only after a call of IsDone that found all parts
// written. A lone rank's needs no call.
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

// What became of a checkpoint. On other ranks than 0 the duration is zero.
struct SavedBeside {
  int64_t step = 0;
  absl::StatusOr<std::string> path;
  absl::Duration duration;
};

void LogSaved(int64_t step, const absl::StatusOr<std::string>& path);

class BesideSave {
 public:
  // Writes this rank's files into the directory, in a thread. It owns what it writes.
  using WriteFiles = std::function<absl::Status(const std::string& dir)>;

  // Returns when the directory is there and the threads write. `store`, of rank 0, null elsewhere,
  // must not be used by anybody else before the save is done.
  static std::unique_ptr<BesideSave> Start(ProcessGroup* group, CheckpointStore* store,
                                           int64_t step, WriteFiles write);
  // Gives up a checkpoint whose parts are not known to be there, and waits for the threads.
  ~BesideSave();

  // Whether it is done on all ranks; the same answer everywhere. With `waits` it always is.
  bool IsDone(bool waits);
  // REQUIRES: IsDone has returned true.
  const SavedBeside& result() const { return *result_; }

 private:
  BesideSave(ProcessGroup* group, int64_t step) : group_(group), step_(step) {}
  // Returns the directory, once it is there; "" if nothing is to be written into it.
  std::future<std::string> StartWhole(CheckpointStore* store, WriteFiles write);
  // Tells rank 0's thread what became of the other ranks' parts.
  void TellParts(const absl::Status& status);
  // The group has failed: nobody knows of the others' parts.
  bool Broken(const absl::Status& status);

  ProcessGroup* const group_;
  const int64_t step_;
  bool knows_parts_ = false;
  std::promise<absl::Status> parts_;
  std::future<SavedBeside> whole_;  // of rank 0
  std::future<absl::Status> part_;  // of the others, if they have one
  std::optional<SavedBeside> result_;
};

}  // namespace taopd
