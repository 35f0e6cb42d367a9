// What a checkpoint of a run holds, and how it is written and read back:
//
//   model/                 the student in Hugging Face layout, with its tokenizer's files
//   optimizer.safetensors  AdamW's moments, its float32 copies of the weights, its update count
//   optimizer/             in place of that, what each of several ranks has (optimizer_shards.h)
//   state.json             TrainState
//   config.yaml            the run's effective configuration
//   identity.json          what a resumed run is compared with (resume_check.h)
//   guard.json             what the collapse guard remembers (train only)
//
// Random numbers need no entry: the seed and the step name every stream.
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

// Where a run stands after a step.
struct TrainState {
  int64_t step = 0;  // steps finished
  // The position in the data; see EpochOrder.
  int64_t epoch = 0;
  int64_t epoch_index = 0;
  // The sizes of metrics.jsonl and samples.jsonl. A resumed run cuts the files there.
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
  // Steps at the end in which every update was skipped for a loss or gradient that was not finite.
  int64_t nonfinite_in_a_row = 0;
  double train_seconds = 0;  // the time of all steps so far
};

inline constexpr char kOptimizerShardsDir[] = "optimizer";

// The model, the state, the text files, by name, and the optimizer, unless it is one of several
// shards, as they are to be written. With `copies` it has tensors of its own, so that the student
// may go on learning while another thread writes; else it refers to those of the student, which
// outlives it. REQUIRES: the student has an optimizer.
class CheckpointContents {
 public:
  CheckpointContents(const Student& student, const TrainState& state,
                     std::map<std::string, std::string> text_files, bool copies);
  // Writes the files into the directory `dir`, which exists.
  absl::Status Write(const std::string& dir) const;

 private:
  TokenizerFiles tokenizer_files_;
  ModelSnapshot model_;
  std::optional<StateToWrite> optimizer_;
  TrainState state_;
  std::map<std::string, std::string> text_files_;
};

// What the copies of CheckpointContents take.
int64_t CheckpointCopyBytes(const Student& student);

// Reads state.json and restores the optimizer of `student`, or its shard, which LoadStudent has
// loaded from dir/model, however many ranks have written it. Returns DATA_LOSS if state.json lacks
// a member.
absl::StatusOr<TrainState> LoadCheckpointState(const std::string& dir, Student* student);

}  // namespace taopd
