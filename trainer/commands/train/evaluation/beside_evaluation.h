// One evaluation beside training (eval.mode): a thread that measures the weights of the
// EvaluationSnapshot.
//
// All ranks call the same functions in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "trainer/commands/train/evaluation/evaluation_part.h"
#include "trainer/commands/train/training_parts.h"
#include "trainer/eval/evaluation_thread.h"

namespace taopd {

class BesideEvaluation {
 public:
  // Starts the evaluation of the weights after `step` steps, which parts->evaluation_snapshot has.
  // `journal` keeps the results. `parts` must outlive the object, and its snapshot must not change
  // before Take has returned or the object is destroyed.
  BesideEvaluation(TrainingParts* parts, int64_t step, std::optional<EvalJournal> journal);
  // Ends the evaluation without a result; the journal keeps what there is.
  ~BesideEvaluation();
  BesideEvaluation(const BesideEvaluation&) = delete;
  BesideEvaluation& operator=(const BesideEvaluation&) = delete;

  int64_t step() const { return step_; }
  // Returns whether this rank's part is done; waits for it at most `timeout`. Local.
  bool IsReady(absl::Duration timeout = absl::ZeroDuration()) { return thread_->IsReady(timeout); }
  // Returns the number of results that the journal has got.
  int64_t num_added() const { return num_added_.load(); }
  // Ends this rank's part soon, with `why`. Local.
  void Cancel(const absl::Status& why);
  // Returns the result on all ranks. REQUIRES: the parts of all ranks are ready.
  absl::StatusOr<EvalResult> Take();

 private:
  absl::StatusOr<EvalResult> Measure(const EvaluationThread::Exchange& exchange,
                                     const std::function<absl::Status()>& cancelled);
  absl::Status OnWait(const std::function<absl::Status()>& cancelled);

  TrainingParts& parts_;
  const int64_t step_;
  const EvaluationPart part_;
  std::optional<EvalJournal> journal_;  // used by the thread
  std::atomic<int64_t> num_added_{0};
  std::optional<EvaluationThread> thread_;  // last, because it uses all of the above
};

}  // namespace taopd
