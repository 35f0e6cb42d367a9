// The report of the subcommand eval on a finished evaluation.
#pragma once

#include <string>

#include "common/base/status.h"
#include "trainer/commands/eval/eval_request.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"

namespace taopd {

// Prints the table, with what the prompts lost before the model saw them, and writes the results to
// request.output_path.
absl::Status ReportEvaluation(const TrainConfig& config, const EvalRequest& request,
                              const std::string& model, const PromptDataset& problems,
                              const EvalResult& result);

}  // namespace taopd
