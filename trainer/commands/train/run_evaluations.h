// The evaluations of a distillation run, and what follows from them: the best checkpoint and the
// early stop.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "trainer/commands/train/run_saves.h"
#include "trainer/eval/accuracy.h"
#include "trainer/guard/best_evaluation.h"

namespace taopd {

class RunEvaluations {
 public:
  // Both must outlive the object.
  RunEvaluations(TrainingParts* parts, RunSaves* saves);

  // Whether the evaluation after the present step belongs to the run.
  bool is_due() const;
  // Returns whether the last step is done, or early_stop_evaluations ends the run early.
  bool ends_run() const;
  // Evaluates. If that fails, the present state is saved first.
  absl::Status Run();
  // Takes the values of the evaluations that the records of a resumed run have.
  void Observe(const RecordedMetrics& records);
  // Restores the best evaluation and best.json from the records and the checkpoints of a resumed
  // run: best.json names the best evaluation whose checkpoint exists, or is removed.
  absl::Status Restore();
  // Returns the time that evaluations took since the last call.
  absl::Duration TakeTime() { return std::exchange(time_, absl::ZeroDuration()); }

 private:
  // Measures the student. Each rank measures a part, unless that would change the numbers; then
  // rank 0 measures all.
  absl::StatusOr<EvalResult> Measure();
  // Returns an error if the evaluation should end.
  absl::Status OnWait(const EvalJournal* journal);
  absl::StatusOr<EvalResult> MeasurePart(const std::vector<PromptRecord>& problems,
                                         const EvalPart& part, EvalJournal* journal);
  // Opens the journal of the present evaluation, with the results of a run that was stopped during
  // it.
  std::optional<EvalJournal> OpenJournal();
  std::string JournalDir() const { return run_.run_dir() + "/evaluation_journal"; }
  absl::Status Failed(const absl::Status& status);
  void ObserveMetrics(const Metrics& metrics);
  // Writes best.json and keeps the checkpoint that it names.
  void NameBest(int64_t step, double value);

  TrainingParts& parts_;
  RunSaves& saves_;
  CheckpointedRun& run_;
  const bool smallest_is_best_;
  BestEvaluation best_;
  int64_t named_best_step_ = -1;  // the step in best.json, whose checkpoint is kept
  absl::Duration time_;
};

}  // namespace taopd
