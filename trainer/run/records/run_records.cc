#include "trainer/run/records/run_records.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace taopd {
namespace {

// Numbers, booleans and texts keep their type; lists, and auto among numbers, become text.
Hparams HparamsOf(const RunFacts& settings) {
  Hparams hparams;
  for (const RunFact& setting : settings) {
    const auto value = nlohmann::json::parse(setting.value, nullptr, /*allow_exceptions=*/false);
    if (value.is_boolean()) {
      hparams.emplace_back(setting.name, value.get<bool>());
    } else if (value.is_number()) {
      hparams.emplace_back(setting.name, value.get<double>());
    } else if (value.is_string()) {
      hparams.emplace_back(setting.name, value.get<std::string>());
    } else {
      hparams.emplace_back(setting.name, setting.value);
    }
  }
  return hparams;
}

}  // namespace

RunRecords::RunRecords(ProcessGroup* group, const std::string& run_dir, int64_t total_steps,
                       const RunFacts& settings, const std::string& watched_metric)
    : group_(group), watched_metric_(watched_metric) {
  options_.run_dir = run_dir;
  options_.total_steps = total_steps;
  options_.settings = HparamsOf(settings);
}

absl::StatusOr<RecordedMetrics> RunRecords::Read(const TrainState& state) {
  TAOPD_ASSIGN_OR_RETURN(read_,
                         ReadRecordedMetrics(options_.run_dir, state.step, state.metrics_bytes,
                                             state.samples_bytes, watched_metric_));
  return *read_;
}

absl::Status RunRecords::Open(const TrainState& state, bool continues) {
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(group_->is_root() ? OpenOwn(state, continues) : absl::OkStatus()));
  // Rank 0 has cut the records that the others read.
  return group_->AgreeOnStatus(group_->is_root() ? absl::OkStatus() : OpenOwn(state, continues));
}

absl::Status RunRecords::OpenOwn(const TrainState& state, bool continues) {
  if (continues) {
    if (!read_) TAOPD_RETURN_IF_ERROR(Read(state).status());
    recorded_ = *std::exchange(read_, std::nullopt);
    if (group_->is_root()) TAOPD_RETURN_IF_ERROR(KeepLaterRecords(options_.run_dir, &recorded_));
    options_.resume_step = state.step;
    options_.metrics_bytes = recorded_.metrics_bytes;
    options_.samples_bytes = recorded_.samples_bytes;
  }
  if (!group_->is_root()) {
    Use(std::make_unique<RunOutput>());
    return absl::OkStatus();
  }
  TAOPD_ASSIGN_OR_RETURN(std::unique_ptr<RunOutput> output, RunOutput::Open(options_));
  Use(std::move(output));
  return absl::OkStatus();
}

void RunRecords::Use(std::unique_ptr<RunOutput> output) {
  outputs_.push_back(std::move(output));
  newest_output_.store(outputs_.back().get());
}

std::string RunRecords::PrometheusText() const {
  const RunOutput* const output = newest_output_.load();
  return output != nullptr ? output->PrometheusText() : std::string();
}

void RunRecords::Sync(TrainState* state) {
  output().Sync();
  state->metrics_bytes = output().metrics_bytes();
  state->samples_bytes = output().samples_bytes();
}

}  // namespace taopd
