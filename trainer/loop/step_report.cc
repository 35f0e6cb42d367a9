#include "trainer/loop/step_report.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/setup/process.h"
#include "trainer/setup/ranks.h"
#include "trainer/step/timing/model_flops.h"
#include "trainer/teacher/teacher_metrics.h"

namespace taopd {

namespace {

// Adds the peaks since the start in GiB, for comparison with the memory plan.
void AddMemoryMetrics(at::Device device, Metrics* metrics) {
  constexpr double kGib = int64_t{1} << 30;
  metrics->emplace_back("memory/host_peak_gb", PeakMemoryBytes() / kGib);
  if (device.is_cpu()) return;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  metrics->emplace_back("memory/device_peak_gb",
                        static_cast<double>(stats.reserved_bytes[0].peak) / kGib);
}

// Call it when time/step_s is that of all ranks. `peak` is the rate of all ranks, or 0 if unknown.
void AddRate(double flops, double peak, Metrics* metrics) {
  const double* const step_s = FindMetric(*metrics, "time/step_s");
  if (step_s == nullptr || *step_s <= 0) return;
  const double rate = flops / *step_s;
  metrics->emplace_back("perf/model_flops_per_s", rate);
  if (peak > 0) metrics->emplace_back("perf/mfu", rate / peak);
}

void AddWorkerMetrics(const RemoteRolloutStats& stats, Metrics* metrics) {
  metrics->emplace_back("rollout/workers_ready", stats.num_reachable);
  metrics->emplace_back("rollout/workers_left_out", stats.num_left_out);
  metrics->emplace_back("rollout/workers_lost", stats.num_lost);
  metrics->emplace_back("rollout/asked_again", stats.num_asked_again);
}

nlohmann::ordered_json TextOrIds(const Tokenizer* tokenizer, const std::vector<int32_t>& ids) {
  if (tokenizer == nullptr) return ids;
  return tokenizer->Decode(ids);
}

}  // namespace

void StepReport::MeasureDevice() {
  const Decoder& decoder = *run_.student().decoder;
  peak_flops_ = config_.trainer.peak_flops;
  if (peak_flops_ == 0 && decoder.device().is_cpu())
    peak_flops_ = MeasurePeakFlops(decoder.lm_head().scalar_type());
}

StepReport::Answers StepReport::Grade(const StepResult& result) const {
  Answers answers;
  const Tokenizer* tokenizer = run_.student().tokenizer.get();
  const bool can_grade = tokenizer != nullptr && data_.grader != nullptr;
  for (size_t i = 0; can_grade && i < result.rollouts.size(); ++i) {
    const PromptRecord& problem = *result.prompts[i];
    if (problem.answer.empty()) continue;
    ++answers.num_graded;
    const Rollout& rollout = result.rollouts[i];
    const std::string text = tokenizer->Decode(rollout.response_ids);
    const bool truncated = rollout.finish != FinishReason::kStop;
    const EvalConfig& eval = config_.eval;
    const grading::Verdict verdict = GradeResponse(*data_.grader, eval, text, truncated, problem);
    answers.num_correct += verdict.correct ? 1 : 0;
    if (FoundAnswer(eval, verdict)) {
      ++answers.num_found;
    } else if (answers.unparsed_response.empty()) {
      answers.unparsed_response = text;
      answers.expected = problem.answer;
    }
  }
  return answers;
}

// A few wrong answers prove nothing, but kMinGraded responses without any answer do.
void StepReport::WarnIfNeverFound(const Answers& answers) {
  constexpr int64_t kMinGraded = 32;
  num_graded_ += answers.num_graded;
  num_found_ += answers.num_found;
  if (num_found_ > 0 || num_graded_ < kMinGraded || has_warned_ || !group_.is_root()) return;
  has_warned_ = true;
  WarnOfNoAnswers(config_.eval, num_graded_, answers.unparsed_response, answers.expected);
}

void StepReport::AddRunMetrics(Metrics* metrics) const {
  metrics->emplace_back("data/epoch", data_.order->epoch());
  metrics->insert(metrics->end(), data_.metrics.begin(), data_.metrics.end());
  metrics->emplace_back("disk/failed_saves", run_.checkpoints().num_failed_saves());
  metrics->emplace_back("disk/records_waiting", run_.output().num_waiting());
  metrics->emplace_back("disk/records_lost", run_.output().num_dropped());
  AddMemoryMetrics(run_.student().decoder->device(), metrics);
}

absl::Status StepReport::Write(const StepResult& result, Metrics* metrics) {
  Answers answers = Grade(result);
  double flops = result.model_flops;
  double peak = peak_flops_;
  RankSums sums;
  sums.Add(&flops);
  sums.Add(&peak);
  RemoteRolloutStats remote;
  if (rollouts_.servers != nullptr) remote = rollouts_.servers->stats();
  for (int64_t* count :
       {&answers.num_graded, &answers.num_correct, &answers.num_found, &remote.num_reachable,
        &remote.num_left_out, &remote.num_lost, &remote.num_asked_again}) {
    sums.Add(count);
  }
  TAOPD_RETURN_IF_ERROR(sums.Reduce(&group_));
  if (answers.num_graded > 0) {
    metrics->emplace_back("rollout/accuracy", static_cast<double>(answers.num_correct) /
                                                  static_cast<double>(answers.num_graded));
  }
  WarnIfNeverFound(answers);
  TeacherClientStats teacher_stats = teacher_.client->stats();
  TAOPD_RETURN_IF_ERROR(SumOverRanks(&group_, &teacher_stats));
  const Metrics teacher_metrics = TeacherMetrics(teacher_stats);
  metrics->insert(metrics->end(), teacher_metrics.begin(), teacher_metrics.end());
  if (rollouts_.servers != nullptr) AddWorkerMetrics(remote, metrics);
  AddRunMetrics(metrics);
  TAOPD_RETURN_IF_ERROR(CombineRankMetrics(&group_, metrics));
  AddRate(flops, peak, metrics);
  TAOPD_ASSIGN_OR_RETURN(*metrics, MetricsOfRoot(&group_, *metrics));
  run_.output().Write(run_.state().step, *metrics);
  if (group_.is_root()) WriteRollouts(result);
  context_.run_control.Update([this](RunStatus& status) { status.teacher = teacher_.Health(); });
  return absl::OkStatus();
}

// Each line of RUN_DIR/rollouts.jsonl has: step, prompt_id, prompt and response as text (as ids
// without a tokenizer), num_tokens, truncated, mean_log_prob (of the response tokens under the
// policy that sampled them). A large file becomes rollouts.1.jsonl and replaces an older one. A
// resumed run appends, so steps that it repeats occur twice. A failure to write is logged.
void StepReport::WriteRollouts(const StepResult& result) const {
  const auto size = static_cast<int64_t>(result.rollouts.size());
  const int64_t count = std::min(config_.trainer.rollout_dumps, size);
  if (count == 0) return;
  const std::string path = run_.run_dir() + "/rollouts.jsonl";
  std::error_code error;
  absl::Status status;
  if (std::filesystem::exists(path, error) &&
      static_cast<int64_t>(std::filesystem::file_size(path, error)) >
          TrainerConfig::kMaxRolloutLogBytes) {
    status = RenamePath(path, run_.run_dir() + "/rollouts.1.jsonl");
  }
  const Tokenizer* const tokenizer = run_.student().tokenizer.get();
  absl::StatusOr<JsonlWriter> writer = JsonlWriter::Open(path);
  status.Update(writer.status());
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    const int64_t index = i * size / count;
    const Rollout& rollout = result.rollouts[index];
    const double sum =
        std::accumulate(rollout.behavior_log_probs.begin(), rollout.behavior_log_probs.end(), 0.0);
    const auto num_tokens = static_cast<int64_t>(rollout.response_ids.size());
    status = writer->Write({{"step", run_.state().step},
                            {"prompt_id", result.prompts[index]->id},
                            {"prompt", TextOrIds(tokenizer, rollout.prompt_ids)},
                            {"response", TextOrIds(tokenizer, rollout.response_ids)},
                            {"num_tokens", num_tokens},
                            {"truncated", rollout.finish == FinishReason::kLength},
                            {"mean_log_prob", sum / static_cast<double>(num_tokens)}});
  }
  if (!status.ok()) LogWarning("rollouts could not be written", {{"error", status}});
}

}  // namespace taopd
