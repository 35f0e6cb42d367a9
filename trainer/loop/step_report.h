// Reports on each step of a distillation run: completes its metrics, with those of the other ranks,
// and writes them, updates the live status, and warns if answers are never found.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <string>

#include "trainer/setup/training/training_parts.h"
#include "trainer/step/train_step.h"

namespace taopd {

class StepReport {
 public:
  // The parts must outlive the object.
  explicit StepReport(const RunContext& context) : context_(context) {}

  // Finds the peak rate of this rank's device, for perf/mfu. Call it before the first step, while
  // nothing else computes.
  void MeasureDevice();
  // Adds metrics to those of the step, makes them those of rank 0 on all ranks, and writes them.
  absl::Status Write(const StepResult& result, Metrics* metrics);

 private:
  // The grades of rollouts.
  struct Answers {
    int64_t num_graded = 0, num_correct = 0, num_found = 0;
    // A response in which no answer was found, and the expected answer.
    std::string unparsed_response, expected;
  };
  Answers Grade(const StepResult& result) const;
  // `answers` are those of all ranks in this step.
  void WarnIfNeverFound(const Answers& answers);
  // Adds the state of the data, of the disk and of the memory.
  void AddRunMetrics(Metrics* metrics) const;
  // Logs trainer.rollout_dumps rollouts of the step, spread over its prompts, for inspection.
  void WriteRollouts(const StepResult& result) const;

  const RunContext context_;
  const TrainConfig& config_ = context_.config;
  CheckpointedRun& run_ = context_.run;
  ProcessGroup& group_ = run_.group();
  const TrainingData& data_ = context_.data;
  const RolloutParts& rollouts_ = context_.rollouts;
  const TeacherParts& teacher_ = context_.teacher;
  double peak_flops_ = 0;                   // of this rank's device; 0: not known
  int64_t num_graded_ = 0, num_found_ = 0;  // numbers of responses since the start of the process
  bool has_warned_ = false;
};

}  // namespace taopd
