// Divides an evaluation among the ranks, and runs one beside training (eval.mode).
//
// All ranks call the same functions in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/dist/process_group.h"
#include "trainer/eval/evaluation_thread.h"
#include "trainer/eval/measure_student.h"
#include "trainer/setup/training/training_parts.h"

namespace taopd {

// Ranks divide the problems, unless that would change the numbers; then rank 0 measures all.
struct EvaluationPart {
  // Makes this rank's part of an evaluation of `problems`, which must outlive it.
  EvaluationPart(const TrainConfig& config, const std::vector<PromptRecord>& problems,
                 ProcessGroup* group);
  EvaluationPart(const EvaluationPart&) = delete;  // `records` may point into the object
  EvaluationPart& operator=(const EvaluationPart&) = delete;

  // Whether this rank measures anything.
  bool has_work = true;
  // Whether the measurement calls AccuracyPart::gather (measure accuracy on several ranks).
  // Otherwise CombineParts combines the results.
  bool exchanges = false;
  // Whether each rank has records of its own (measure kl).
  bool is_divided = false;
  // The records to measure: `problems`, or this rank's records.
  const std::vector<PromptRecord>* records = nullptr;

 private:
  std::vector<PromptRecord> mine_;
};

// Gathers the outcomes of all ranks on all ranks, or their first error. All ranks must call it.
absl::StatusOr<std::vector<std::string>> GatherOutcomes(ProcessGroup* group,
                                                        const absl::StatusOr<std::string>& mine);
// Returns the result of all parts, or the first error, on all ranks; a rank without work gets an
// empty result. Without an exchange, samples are those of this rank. All ranks must call it.
absl::StatusOr<EvalResult> CombineParts(const EvaluationPart& part, ProcessGroup* group,
                                        absl::StatusOr<EvalResult> mine);

// A thread that measures the weights of the EvaluationSnapshot.
class BesideEvaluation {
 public:
  // Starts the evaluation of the weights after `step` steps, which the snapshot has. `journal`
  // keeps the results. The parts must outlive the object, and the snapshot must not change before
  // Take has returned or the object is destroyed.
  BesideEvaluation(const RunContext& context, int64_t step, std::optional<EvalJournal> journal);
  // Ends the evaluation without a result; the journal keeps what there is.
  ~BesideEvaluation();
  BesideEvaluation(const BesideEvaluation&) = delete;
  BesideEvaluation& operator=(const BesideEvaluation&) = delete;

  int64_t step() const { return step_; }
  // Returns whether this rank's part is done; waits for it at most `timeout`. Local.
  bool IsReady(absl::Duration timeout = absl::ZeroDuration()) { return thread_->IsReady(timeout); }
  // Returns the number of results that were added to the journal.
  int64_t num_added() const { return num_added_.load(); }
  // Makes this rank's part end soon, with `why`. Local.
  void Cancel(const absl::Status& why);
  // Returns the result of CombineParts. REQUIRES: the parts of all ranks are ready.
  absl::StatusOr<EvalResult> Take();

 private:
  absl::StatusOr<EvalResult> Measure(const EvaluationThread::Exchange& exchange,
                                     const std::function<absl::Status()>& cancelled);
  absl::Status OnWait(const std::function<absl::Status()>& cancelled);

  const RunContext context_;
  ProcessGroup* const group_ = &context_.run.group();
  EvaluationSnapshot* const snapshot_ = context_.rollouts.evaluation_snapshot.get();
  const int64_t step_;
  const EvaluationPart part_{context_.config, context_.data.problems, group_};
  std::optional<EvalJournal> journal_;  // used by the thread
  std::atomic<int64_t> num_added_{0};
  std::optional<EvaluationThread> thread_;  // last, because it uses all of the above
};

}  // namespace taopd
