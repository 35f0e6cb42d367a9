#include "trainer/commands/train/evaluation/beside_evaluation.h"

#include <ATen/Parallel.h>
#include <absl/time/clock.h>

#include <string>
#include <utility>

#include "common/engine/runner/guarded.h"

namespace taopd {
namespace {

// The interval at which an evaluation that gives way to rollouts asks whether it may go on.
constexpr absl::Duration kYieldPoll = absl::Milliseconds(1);

}  // namespace

BesideEvaluation::BesideEvaluation(TrainingParts* parts, int64_t step,
                                   std::optional<EvalJournal> journal)
    : parts_(*parts),
      step_(step),
      part_(parts->config, parts->problems, parts->group),
      journal_(std::move(journal)) {
  thread_.emplace([this](const EvaluationThread::Exchange& exchange,
                         const std::function<absl::Status()>& cancelled) {
    return Measure(exchange, cancelled);
  });
}

BesideEvaluation::~BesideEvaluation() {
  Cancel(absl::CancelledError("the evaluation is abandoned"));
}

void BesideEvaluation::Cancel(const absl::Status& why) {
  parts_.evaluation_snapshot->StopYielding();
  thread_->Cancel(why);
}

absl::Status BesideEvaluation::OnWait(const std::function<absl::Status()>& cancelled) {
  if (journal_ && journal_->num_added() > num_added_.load()) {
    num_added_.store(journal_->num_added());
    parts_.run_state->Progress();
  }
  // An engine gives way by itself; here a forward pass does.
  const bool computes_passes = parts_.config.eval.measure == EvalMeasure::kKl;
  absl::Status status = cancelled();
  while (status.ok() && computes_passes && parts_.evaluation_snapshot->Yields()) {
    absl::SleepFor(kYieldPoll);
    status = cancelled();
  }
  return status;
}

absl::StatusOr<EvalResult> BesideEvaluation::Measure(
    const EvaluationThread::Exchange& exchange, const std::function<absl::Status()>& cancelled) {
  if (!part_.has_work) return EvalResult();
  at::init_num_threads();  // at::set_num_threads reaches a new thread only through this
  EvaluationSnapshot& snapshot = *parts_.evaluation_snapshot;
  const EvaluatedModel model = {.decoder = snapshot.decoder(),
                                .engine = snapshot.rollout_engine(),
                                .tokenizer = parts_.student.tokenizer.get(),
                                .teacher = parts_.teacher.get()};
  const EvalPart part = part_.exchanges
                            ? EvalPart{parts_.group->rank(), parts_.group->world_size(), exchange}
                            : EvalPart();
  absl::StatusOr<EvalResult> result = EvalResult();
  const absl::Status ran = Guarded([&] {
    result = MeasureStudent(
        parts_.config, *part_.records, model, [&] { return OnWait(cancelled); }, part,
        journal_ ? &*journal_ : nullptr);
  });
  if (!ran.ok()) return ran;
  return result;
}

absl::StatusOr<EvalResult> BesideEvaluation::Take() {
  EvaluationThread::Exchange exchange;
  if (part_.exchanges) {
    exchange = [this](const absl::StatusOr<std::string>& mine) {
      return GatherOutcomes(parts_.group, mine);
    };
  }
  return CombineParts(part_, parts_.group, thread_->Take(exchange));
}

}  // namespace taopd
