#include "trainer/commands/train/run_report.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/log.h"
#include "common/io/jsonl.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/setup/ranks.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/dist/rank_sums.h"
#include "trainer/step/timing/model_flops.h"
#include "trainer/teacher/teacher_metrics.h"

namespace taopd {

namespace {

// Adds the peaks since the start in GiB, for comparison with the memory plan.
void AddMemoryMetrics(at::Device device, Metrics* metrics) {
  constexpr double kGib = int64_t{1} << 30;
  metrics->emplace_back("memory/host_peak_gb", static_cast<double>(PeakMemoryBytes()) / kGib);
  if (device.is_cpu()) return;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  metrics->emplace_back("memory/device_peak_gb",
                        static_cast<double>(stats.reserved_bytes[0].peak) / kGib);
}

// Call it when time/step_s is that of all ranks. `peak` is the rate of all ranks, or 0 if unknown.
void AddRate(double flops, double peak, Metrics* metrics) {
  double seconds = 0;
  for (const auto& [name, value] : *metrics) {
    if (name == "time/step_s") seconds = value;
  }
  if (seconds <= 0) return;
  metrics->emplace_back("perf/model_flops_per_s", flops / seconds);
  if (peak > 0) metrics->emplace_back("perf/mfu", flops / seconds / peak);
}

nlohmann::ordered_json TextOrIds(const Tokenizer* tokenizer, const std::vector<int32_t>& ids) {
  if (tokenizer == nullptr) return ids;
  return tokenizer->Decode(ids);
}

}  // namespace

void RolloutLog::Write(int64_t step, const std::vector<const PromptRecord*>& prompts,
                       const std::vector<Rollout>& rollouts, const Tokenizer* tokenizer) {
  const auto size = static_cast<int64_t>(rollouts.size());
  const int64_t count = std::min(per_step_, size);
  if (count == 0) return;
  const std::string path = run_dir_ + "/rollouts.jsonl";
  std::error_code error;
  if (std::filesystem::exists(path, error) &&
      static_cast<int64_t>(std::filesystem::file_size(path, error)) >
          TrainerConfig::kMaxRolloutLogBytes) {
    std::filesystem::rename(path, run_dir_ + "/rollouts.1.jsonl", error);
  }
  absl::StatusOr<JsonlWriter> writer = JsonlWriter::Open(path);
  absl::Status status = writer.status();
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    const int64_t index = i * size / count;
    const Rollout& rollout = rollouts[index];
    const double sum =
        std::accumulate(rollout.behavior_log_probs.begin(), rollout.behavior_log_probs.end(), 0.0);
    const auto num_tokens = static_cast<int64_t>(rollout.response_ids.size());
    status = writer->Write(
        {{"step", step},
         {"prompt_id", prompts[index * static_cast<int64_t>(prompts.size()) / size]->id},
         {"prompt", TextOrIds(tokenizer, rollout.prompt_ids)},
         {"response", TextOrIds(tokenizer, rollout.response_ids)},
         {"num_tokens", num_tokens},
         {"truncated", rollout.finish == FinishReason::kLength},
         {"mean_log_prob", sum / static_cast<double>(num_tokens)}});
  }
  if (!status.ok()) LogWarning("rollouts could not be written", {{"error", status}});
}

RunReport::RunReport(TrainingParts* parts)
    : parts_(*parts), rollout_log_(parts->run.run_dir(), parts->config.trainer.rollout_dumps) {}

RunReport::Answers RunReport::Grade(const StepResult& result) const {
  Answers answers;
  const Tokenizer* tokenizer = parts_.student.tokenizer.get();
  const bool can_grade = tokenizer != nullptr && parts_.grader != nullptr;
  for (size_t i = 0; can_grade && i < result.rollouts.size(); ++i) {
    const PromptRecord& problem = *result.prompts[i];
    if (problem.answer.empty()) continue;
    ++answers.graded;
    const Rollout& rollout = result.rollouts[i];
    const std::string text = tokenizer->Decode(rollout.response_ids);
    const bool truncated = rollout.finish != FinishReason::kStop;
    const EvalConfig& eval = parts_.config.eval;
    const grading::Verdict verdict = GradeResponse(*parts_.grader, eval, text, truncated, problem);
    answers.correct += verdict.correct ? 1 : 0;
    if (FoundAnswer(eval, verdict)) {
      ++answers.found;
    } else if (answers.unread.empty()) {
      answers.unread = text;
      answers.expected = problem.answer;
    }
  }
  return answers;
}

// A few wrong answers prove nothing, but as many responses without any answer do.
void RunReport::WarnIfNeverFound(const Answers& answers) {
  constexpr int64_t kMinGraded = 32;
  num_graded_ += answers.graded;
  num_found_ += answers.found;
  if (num_found_ > 0 || num_graded_ < kMinGraded || has_warned_ || !parts_.is_root()) return;
  has_warned_ = true;
  WarnOfNoAnswers(parts_.config.eval, num_graded_, answers.unread, answers.expected);
}

absl::Status RunReport::Write(const StepResult& result, Metrics* metrics) {
  ProcessGroup* const group = parts_.group;
  RunOutput& output = parts_.run.output();
  Answers answers = Grade(result);
  double flops = ModelFlops(parts_.student.decoder->config(), result.rollouts);
  double peak = parts_.peak_flops;
  RankSums sums;
  sums.Add(&answers.graded);
  sums.Add(&answers.correct);
  sums.Add(&answers.found);
  sums.Add(&flops);
  sums.Add(&peak);
  RemoteRolloutStats remote;
  if (parts_.remote.engine != nullptr) remote = parts_.remote.engine->stats();
  for (int64_t* count :
       {&remote.num_ready, &remote.num_left_out, &remote.num_lost, &remote.num_asked_again}) {
    sums.Add(count);
  }
  TAOPD_RETURN_IF_ERROR(sums.Reduce(group));
  if (answers.graded > 0) {
    metrics->emplace_back("rollout/accuracy", static_cast<double>(answers.correct) /
                                                  static_cast<double>(answers.graded));
  }
  WarnIfNeverFound(answers);
  TeacherClientStats teacher_stats = parts_.teacher->stats();
  TAOPD_RETURN_IF_ERROR(SumOverRanks(group, &teacher_stats));
  const Metrics teacher_metrics = TeacherMetrics(teacher_stats);
  metrics->insert(metrics->end(), teacher_metrics.begin(), teacher_metrics.end());
  if (parts_.remote.engine != nullptr) {
    metrics->emplace_back("rollout/workers_ready", static_cast<double>(remote.num_ready));
    metrics->emplace_back("rollout/workers_left_out", static_cast<double>(remote.num_left_out));
    metrics->emplace_back("rollout/workers_lost", static_cast<double>(remote.num_lost));
    metrics->emplace_back("rollout/asked_again", static_cast<double>(remote.num_asked_again));
  }
  metrics->emplace_back("data/epoch", static_cast<double>(parts_.data.order->epoch()));
  metrics->insert(metrics->end(), parts_.data.metrics.begin(), parts_.data.metrics.end());
  metrics->emplace_back("disk/failed_saves",
                        static_cast<double>(parts_.run.checkpoints().num_failed_saves()));
  metrics->emplace_back("disk/records_waiting", static_cast<double>(output.num_waiting()));
  metrics->emplace_back("disk/records_lost", static_cast<double>(output.num_dropped()));
  AddMemoryMetrics(parts_.student.decoder->device(), metrics);
  TAOPD_RETURN_IF_ERROR(CombineRankMetrics(group, metrics));
  AddRate(flops, peak, metrics);
  TAOPD_ASSIGN_OR_RETURN(*metrics, MetricsOfRoot(group, *metrics));
  output.Write(parts_.state.step, *metrics);
  if (parts_.is_root()) {
    rollout_log_.Write(parts_.state.step, result.prompts, result.rollouts,
                       parts_.student.tokenizer.get());
  }
  UpdateStatus(*metrics);
  return absl::OkStatus();
}

void RunReport::UpdateStatus(const Metrics& metrics) {
  const TrainState& state = parts_.state;
  const double seconds_per_step = state.train_seconds / static_cast<double>(state.step);
  const int64_t steps_left = parts_.config.trainer.total_steps - state.step;
  parts_.run_state->Update([&](RunStatus& status) {
    status.step = state.step;
    status.metrics = metrics;
    status.teacher = parts_.Health();
    status.eta_seconds = seconds_per_step * static_cast<double>(steps_left);
  });
}

}  // namespace taopd
