// The contents of a run's checkpoint, and functions to write and read them:
//
//   model/                 the student in Hugging Face layout, with its tokenizer's files; of a
//                          student with adapters, these alone in PEFT's layout
//   optimizer.safetensors  AdamW's moments, copies and average of the weights, and update count
//   optimizer/             instead of that, the parts of several ranks (optimizer_shards.h)
//   state.json             TrainState
//   config.yaml            the run's effective configuration
//   identity.json          the facts with which a resumed run is compared (resume_check.h)
//   pending/, in_flight/   rollouts that the checkpoint's weights cannot generate again (train
//                          only; trainer/step/rollouts/pending_step.h)
//   guard.json             the state of the collapse guard (train only)
//   probe.json             the responses that policy/kl_to_start is measured on (train only, if
//                          it is measured)
//
// Random numbers need no entry, because the seed and the step determine every stream.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/model/weights/model_snapshot.h"
#include "trainer/optim/saved_state.h"
#include "trainer/student/student.h"

namespace taopd {

// The position of a run after a step.
struct TrainState {
  int64_t step = 0;  // finished steps
  // The position in the data; see EpochOrder.
  int64_t epoch = 0;
  int64_t epoch_index = 0;
  // The sizes of metrics.jsonl and samples.jsonl, to which a resumed run cuts the files.
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
  // The number of latest steps in which every update was skipped because a loss or gradient was not
  // finite.
  int64_t nonfinite_in_a_row = 0;
  double train_seconds = 0;  // the time of all steps so far
  // The step whose evaluation beside training is not recorded yet, or -1 if there is none.
  int64_t open_evaluation = -1;
};

inline constexpr char kOptimizerShardsDir[] = "optimizer";

// The model, the state, the text files (by name) and, unless it is one of several shards, the
// optimizer, ready to be written. With `copies` the object copies the tensors, so that the student
// may continue to train while another thread writes them. Otherwise it refers to the tensors of the
// student, which must outlive it. REQUIRES: the student has an optimizer.
class CheckpointContents {
 public:
  CheckpointContents(const Student& student, const TrainState& state,
                     std::map<std::string, std::string> text_files, bool copies);
  // Writes the files into the directory `dir`, which must exist.
  absl::Status Write(const std::string& dir) const;

 private:
  TokenizerFiles tokenizer_files_;
  ModelSnapshot model_;
  std::optional<StateToWrite> optimizer_;
  TrainState state_;
  std::map<std::string, std::string> text_files_;
};

// Returns the bytes of the copies in CheckpointContents.
int64_t CheckpointCopyBytes(const Student& student);

// Reads state.json. Returns DATA_LOSS if it lacks a member.
absl::StatusOr<TrainState> ReadTrainState(const std::string& dir);

// Reads state.json and restores the optimizer, or its shard, of `student`, which LoadStudent has
// loaded from dir/model. Any number of ranks may have written it. Returns DATA_LOSS if state.json
// lacks a member.
absl::StatusOr<TrainState> LoadCheckpointState(const std::string& dir, Student* student);

}  // namespace taopd
