#include "trainer/commands/eval/evaluation_identity.h"

#include <chrono>
#include <filesystem>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/model/config/lora_config.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Returns the settings that determine the problems and the grading, by name.
Json SettingsOfEvaluation(TrainConfig config) {
  Json values = Json::object();
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    const bool counts =
        setting.path == "run.seed" || setting.path == "student.dtype" ||
        (setting.path.rfind("eval.", 0) == 0 && setting.path != "eval.num_samples") ||
        (setting.path.rfind("data.", 0) == 0 && setting.path.rfind("data.train", 0) != 0 &&
         setting.path != "data.val" && setting.path != "data.max_response_length" &&
         setting.path != "data.shuffle" && setting.path != "data.drop_duplicates");
    if (counts) values[setting.path] = SettingText(setting.value);
  }
  return values;
}

absl::Status AddWeightFiles(const std::string& dir, Json* evaluation) {
  TAOPD_ASSIGN_OR_RETURN(const auto names, ListDirectory(dir));
  for (const std::string& name : names) {
    if (name.find(".safetensors") == std::string::npos) continue;
    std::error_code error;
    const std::string path = dir + "/" + name;
    const auto time =
        std::chrono::file_clock::to_sys(std::filesystem::last_write_time(path, error));
    (*evaluation)["weights"].push_back({{"file", name},
                                        {"bytes", std::filesystem::file_size(path, error)},
                                        {"unix_ns", time.time_since_epoch().count()}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> DescribeQuestions(const TrainConfig& config) {
  Json evaluation = SettingsOfEvaluation(config);
  for (const std::string& path : config.data.val) {
    TAOPD_ASSIGN_OR_RETURN(const std::string hash, Sha256OfFile(path));
    evaluation["data"].push_back({{"file", path}, {"sha256", hash}});
  }
  return evaluation;
}

absl::StatusOr<Json> DescribeEvaluation(const TrainConfig& config, const EvalRequest& request,
                                        const std::string& model) {
  TAOPD_ASSIGN_OR_RETURN(Json evaluation, DescribeQuestions(config));
  evaluation["model"] = model;
  if (!request.endpoint.empty()) {
    evaluation["endpoint"] = request.endpoint;
  } else {
    TAOPD_RETURN_IF_ERROR(AddWeightFiles(model, &evaluation));
    // An adapter's weights are those of its base, too.
    TAOPD_ASSIGN_OR_RETURN(const std::string base, BaseModelDir(model));
    if (base != model) TAOPD_RETURN_IF_ERROR(AddWeightFiles(base, &evaluation));
  }
  return evaluation;
}

}  // namespace taopd
