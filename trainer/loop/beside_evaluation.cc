#include "trainer/loop/beside_evaluation.h"

#include <ATen/Parallel.h>
#include <absl/time/clock.h>

#include <utility>

#include "common/model/torch_errors.h"
#include "trainer/dist/rank_metrics.h"

namespace taopd {
namespace {

// The interval at which an evaluation that gives way to rollouts asks whether it may continue.
constexpr absl::Duration kYieldPoll = absl::Milliseconds(1);

// Combines the metrics of each rank on its records into those on all records.
absl::Status JoinKl(const std::vector<PromptRecord>& records, ProcessGroup* group,
                    Metrics* metrics) {
  int64_t num_tokens = 0;
  for (const PromptRecord& record : records) {
    num_tokens += static_cast<int64_t>(record.response_ids.size());
  }
  double* kl = nullptr;
  RankSums sums;
  sums.Add(&num_tokens);
  for (auto& [name, value] : *metrics) {
    if (name == "eval/kl_to_teacher") {
      kl = &value;
      value *= static_cast<double>(num_tokens);
    }
    sums.Add(&value);
  }
  TAOPD_RETURN_IF_ERROR(sums.Reduce(group));
  if (kl != nullptr) *kl /= static_cast<double>(num_tokens);
  return absl::OkStatus();
}

}  // namespace

EvaluationPart::EvaluationPart(const TrainConfig& config, const std::vector<PromptRecord>& problems,
                               ProcessGroup* group)
    : records(&problems) {
  const int64_t world_size = group->world_size(), rank = group->rank();
  if (world_size == 1) return;
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    exchanges = true;
    return;
  }
  // Sums over parts would round differently from the sum over all.
  const auto size = static_cast<int64_t>(problems.size());
  is_divided =
      config.eval.measure == EvalMeasure::kKl && size >= world_size && !config.dist.deterministic;
  has_work = is_divided || group->is_root();
  if (!is_divided) return;
  mine_.assign(problems.begin() + size * rank / world_size,
               problems.begin() + size * (rank + 1) / world_size);
  records = &mine_;
}

absl::StatusOr<std::vector<std::string>> GatherOutcomes(ProcessGroup* group,
                                                        const absl::StatusOr<std::string>& mine) {
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(mine.status()));
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    TAOPD_ASSIGN_OR_RETURN(all.emplace_back(), group->BroadcastText(*mine, rank));
  }
  return all;
}

absl::StatusOr<EvalResult> CombineParts(const EvaluationPart& part, ProcessGroup* group,
                                        absl::StatusOr<EvalResult> mine) {
  // Ranks without work wait here.
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(mine.status()));
  if (part.is_divided) TAOPD_RETURN_IF_ERROR(JoinKl(*part.records, group, &mine->metrics));
  return mine;
}

BesideEvaluation::BesideEvaluation(const RunContext& context, int64_t step,
                                   std::optional<EvalJournal> journal)
    : context_(context), step_(step), journal_(std::move(journal)) {
  thread_.emplace([this](const EvaluationThread::Exchange& exchange,
                         const std::function<absl::Status()>& cancelled) {
    return Measure(exchange, cancelled);
  });
}

BesideEvaluation::~BesideEvaluation() {
  Cancel(absl::CancelledError("the evaluation is abandoned"));
}

void BesideEvaluation::Cancel(const absl::Status& why) {
  snapshot_->StopYielding();
  thread_->Cancel(why);
}

absl::Status BesideEvaluation::OnWait(const std::function<absl::Status()>& cancelled) {
  if (journal_ && journal_->num_added() > num_added_.load()) {
    num_added_.store(journal_->num_added());
    context_.run_control.Progress();
  }
  // An engine gives way by itself; a forward pass gives way here.
  const bool computes_passes = context_.config.eval.measure == EvalMeasure::kKl;
  absl::Status status = cancelled();
  while (status.ok() && computes_passes && snapshot_->Yields()) {
    absl::SleepFor(kYieldPoll);
    status = cancelled();
  }
  return status;
}

absl::StatusOr<EvalResult> BesideEvaluation::Measure(
    const EvaluationThread::Exchange& exchange, const std::function<absl::Status()>& cancelled) {
  if (!part_.has_work) return EvalResult();
  at::init_num_threads();  // at::set_num_threads reaches a new thread only through this
  const EvaluatedModel model = {.decoder = snapshot_->decoder(),
                                .engine = snapshot_->rollout_engine(),
                                .tokenizer = context_.run.student().tokenizer.get(),
                                .teacher = context_.teacher.client.get()};
  const AccuracyPart part = part_.exchanges
                                ? AccuracyPart{group_->rank(), group_->world_size(), exchange}
                                : AccuracyPart();
  absl::StatusOr<EvalResult> result = EvalResult();
  const absl::Status ran = CatchTorchErrors([&] {
    result = MeasureStudent(
        context_.config, *part_.records, model, [&] { return OnWait(cancelled); }, part,
        journal_ ? &*journal_ : nullptr);
  });
  if (!ran.ok()) return ran;
  return result;
}

absl::StatusOr<EvalResult> BesideEvaluation::Take() {
  EvaluationThread::Exchange exchange;
  if (part_.exchanges) {
    exchange = [this](const absl::StatusOr<std::string>& mine) {
      return GatherOutcomes(group_, mine);
    };
  }
  return CombineParts(part_, group_, thread_->Take(exchange));
}

}  // namespace taopd
