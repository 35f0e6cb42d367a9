#include "trainer/run/train_state.h"

#include <nlohmann/json.hpp>
#include <type_traits>

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
}

}  // namespace

absl::Status SaveCheckpointFiles(const Student& student, const TrainState& state,
                                 const std::map<std::string, std::string>& text_files,
                                 const std::string& dir) {
  TAOPD_RETURN_IF_ERROR(SaveStudentModel(student, dir + "/model"));
  if (student.optimizer->layout().num_shards() == 1) {
    TAOPD_RETURN_IF_ERROR(student.optimizer->Save(dir + "/optimizer.safetensors"));
  }
  json values;
  TrainState copy = state;
  VisitState(copy, [&](const char* name, auto& value) { values[name] = value; });
  TAOPD_RETURN_IF_ERROR(WriteFileAtomically(dir + "/state.json", values.dump(2) + "\n"));
  for (const auto& [name, text] : text_files) {
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(dir + "/" + name, text));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainState> LoadCheckpointState(const std::string& dir, Student* student) {
  const std::string path = dir + "/state.json";
  TAOPD_ASSIGN_OR_RETURN(const json values, ReadJsonFile(path));
  TrainState state;
  absl::Status status;
  VisitState(state, [&](const char* name, auto& value) {
    if (!values.is_object() || !values.contains(name) || !values[name].is_number()) {
      if (status.ok()) status = DataLoss(path, ": no number \"", name, "\"");
      return;
    }
    value = values[name].get<std::remove_reference_t<decltype(value)>>();
  });
  TAOPD_RETURN_IF_ERROR(status);
  const std::string shards_dir = dir + "/" + kOptimizerShardsDir;
  if (FileExists(shards_dir)) {
    TAOPD_RETURN_IF_ERROR(ReadOptimizerShards(shards_dir, student->optimizer.get()));
  } else {
    TAOPD_RETURN_IF_ERROR(student->optimizer->Load(dir + "/optimizer.safetensors"));
  }
  return state;
}

}  // namespace taopd
