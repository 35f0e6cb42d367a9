// The part of an evaluation that each rank measures, and how the parts become one result.
#pragma once

#include <string>
#include <vector>

#include "common/dist/process_group.h"
#include "trainer/commands/measure_student.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"

namespace taopd {

// Ranks divide the problems, unless that would change the numbers; then rank 0 measures all.
struct EvaluationPart {
  // Makes this rank's part of an evaluation of `problems`, which must outlive it.
  EvaluationPart(const TrainConfig& config, const std::vector<PromptRecord>& problems,
                 ProcessGroup* group);

  // Whether this rank measures anything.
  bool has_work = true;
  // Whether the measurement calls EvalPart::gather (measure accuracy on several ranks). Otherwise
  // CombineParts combines the results.
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
// Returns the result of all parts, or the first error, on all ranks; without an exchange, samples
// are those of this rank. All ranks must call it.
absl::StatusOr<EvalResult> CombineParts(const EvaluationPart& part, ProcessGroup* group,
                                        absl::StatusOr<EvalResult> mine);

}  // namespace taopd
