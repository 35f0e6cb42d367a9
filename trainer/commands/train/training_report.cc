// The report of a distillation run on a step: its metrics, including those of all ranks, and
// answers that are not found.
#include <c10/core/CachingDeviceAllocator.h>

#include "trainer/commands/process.h"
#include "trainer/commands/train/training_run.h"
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

}  // namespace

// A few wrong answers prove nothing, but as many responses without any answer do.
void TrainingRun::WatchAnswers(int64_t graded, int64_t found, const std::string& response,
                               const std::string& expected) {
  constexpr int64_t kMinGraded = 32;
  num_graded_ += graded;
  num_found_ += found;
  if (num_found_ > 0 || num_graded_ < kMinGraded || has_warned_of_answers_ || !is_root()) return;
  has_warned_of_answers_ = true;
  WarnOfNoAnswers(config_.eval, num_graded_, response, expected);
}

absl::Status TrainingRun::Report(const StepResult& result, Metrics* metrics) {
  int64_t graded = 0, correct = 0, found = 0;
  std::string unread;  // a response in which no answer was found, and what was expected
  std::string expected;
  const bool can_grade = student_.tokenizer != nullptr && grader_ != nullptr;
  for (size_t i = 0; can_grade && i < result.rollouts.size(); ++i) {
    const PromptRecord& problem = *result.prompts[i];
    if (problem.answer.empty()) continue;
    ++graded;
    const Rollout& rollout = result.rollouts[i];
    const std::string text = student_.tokenizer->Decode(rollout.response_ids);
    const bool truncated = rollout.finish != FinishReason::kStop;
    const grading::Verdict verdict =
        GradeResponse(*grader_, config_.eval, text, truncated, problem);
    correct += verdict.correct ? 1 : 0;
    if (FoundAnswer(config_.eval, verdict)) {
      ++found;
    } else if (unread.empty()) {
      unread = text;
      expected = problem.answer;
    }
  }
  double flops = ModelFlops(student_.decoder->config(), result.rollouts), peak = peak_flops_;
  RankSums answers;
  answers.Add(&graded);
  answers.Add(&correct);
  answers.Add(&found);
  answers.Add(&flops);
  answers.Add(&peak);
  TAOPD_RETURN_IF_ERROR(answers.Reduce(group_));
  if (graded > 0)
    metrics->emplace_back("rollout/accuracy",
                          static_cast<double>(correct) / static_cast<double>(graded));
  WatchAnswers(graded, found, unread, expected);
  TeacherClientStats teacher_stats = teacher_->stats();
  TAOPD_RETURN_IF_ERROR(SumOverRanks(group_, &teacher_stats));
  const Metrics teacher_metrics = TeacherMetrics(teacher_stats);
  metrics->insert(metrics->end(), teacher_metrics.begin(), teacher_metrics.end());
  metrics->emplace_back("data/epoch", static_cast<double>(order_->epoch()));
  metrics->insert(metrics->end(), data_metrics_.begin(), data_metrics_.end());
  metrics->emplace_back("time/save_s", absl::ToDoubleSeconds(save_time_));
  metrics->emplace_back("time/evaluation_s", absl::ToDoubleSeconds(evaluation_time_));
  save_time_ = evaluation_time_ = absl::ZeroDuration();
  metrics->emplace_back("disk/failed_saves", static_cast<double>(run_.num_failed_saves()));
  metrics->emplace_back("disk/records_waiting", static_cast<double>(run_.output().num_waiting()));
  metrics->emplace_back("disk/records_lost", static_cast<double>(run_.output().num_dropped()));
  AddMemoryMetrics(student_.decoder->device(), metrics);
  TAOPD_RETURN_IF_ERROR(CombineRankMetrics(group_, metrics));
  AddRate(flops, peak, metrics);
  TAOPD_ASSIGN_OR_RETURN(*metrics, MetricsOfRoot(group_, *metrics));
  run_.output().Write(state_.step, *metrics);
  if (is_root()) {
    rollout_log_.Write(state_.step, result.prompts, result.rollouts, student_.tokenizer.get());
  }
  const double seconds_per_step = state_.train_seconds / static_cast<double>(state_.step);
  run_state_->Update([&](RunStatus& status) {
    status.step = state_.step;
    status.metrics = *metrics;
    status.teacher = Health();
    status.eta_seconds =
        seconds_per_step * static_cast<double>(config_.trainer.total_steps - state_.step);
  });
  return absl::OkStatus();
}

}  // namespace taopd
