#include "trainer/run/train_state.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>

#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "trainer/dist/optimizer_shards.h"

namespace taopd {
namespace {

using nlohmann::json;

// The one list of state.json's members.
template <typename Fn>
void VisitState(TrainState& state, Fn&& visit) {
  visit("step", state.step);
  visit("epoch", state.epoch);
  visit("epoch_index", state.epoch_index);
  visit("metrics_bytes", state.metrics_bytes);
  visit("samples_bytes", state.samples_bytes);
  visit("nonfinite_in_a_row", state.nonfinite_in_a_row);
  visit("train_seconds", state.train_seconds);
  visit("open_evaluation", state.open_evaluation);
}

}  // namespace

CheckpointContents::CheckpointContents(const Student& student, const TrainState& state,
                                       std::map<std::string, std::string> text_files, bool copies)
    : tokenizer_files_(student.tokenizer_files),
      model_(SnapshotOf(*student.decoder, copies)),
      state_(state),
      text_files_(std::move(text_files)) {
  if (student.optimizer->layout().num_shards() == 1) {
    optimizer_.emplace(student.optimizer->StateToSave(copies));
  }
}

absl::Status CheckpointContents::Write(const std::string& dir) const {
  TAOPD_RETURN_IF_ERROR(WriteTokenizerFiles(tokenizer_files_, dir + "/model"));
  TAOPD_RETURN_IF_ERROR(SaveSnapshot(model_, dir + "/model"));
  if (optimizer_) TAOPD_RETURN_IF_ERROR(optimizer_->Write(dir + "/optimizer.safetensors"));
  json values;
  TrainState copy = state_;
  VisitState(copy, [&](const char* name, auto& value) { values[name] = value; });
  TAOPD_RETURN_IF_ERROR(WriteFileAtomically(dir + "/state.json", values.dump(2) + "\n"));
  for (const auto& [name, text] : text_files_) {
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(dir + "/" + name, text));
  }
  return absl::OkStatus();
}

int64_t CheckpointCopyBytes(const Student& student) {
  int64_t bytes = 0;
  for (const auto& [name, parameter] : student.decoder->TrainedParameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  for (const AdamW::StateSlice& slice : student.optimizer->State()) {
    bytes += static_cast<int64_t>(slice.values.nbytes());
  }
  return bytes;
}

absl::StatusOr<TrainState> ReadTrainState(const std::string& dir) {
  const std::string path = dir + "/state.json";
  TAOPD_ASSIGN_OR_RETURN(const json values, ReadJsonFile(path));
  TrainState state;
  absl::Status status;
  VisitState(state, [&](const char* name, auto& value) {
    // Older checkpoints lack it.
    const bool is_optional = std::string_view(name) == "open_evaluation";
    if (is_optional && values.is_object() && !values.contains(name)) return;
    if (!values.is_object() || !values.contains(name) || !values[name].is_number()) {
      status.Update(DataLoss(path, ": no number \"", name, "\""));
      return;
    }
    value = values[name].get<std::remove_reference_t<decltype(value)>>();
  });
  TAOPD_RETURN_IF_ERROR(status);
  return state;
}

absl::StatusOr<TrainState> LoadCheckpointState(const std::string& dir, Student* student) {
  TAOPD_ASSIGN_OR_RETURN(const TrainState state, ReadTrainState(dir));
  const std::string shards_dir = dir + "/" + kOptimizerShardsDir;
  if (FileExists(shards_dir)) {
    TAOPD_RETURN_IF_ERROR(ReadOptimizerShards(shards_dir, student->optimizer.get()));
  } else {
    TAOPD_RETURN_IF_ERROR(student->optimizer->Load(dir + "/optimizer.safetensors"));
  }
  return state;
}

}  // namespace taopd
