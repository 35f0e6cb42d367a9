// The files of an evaluation: its journal, which belongs to one evaluation, and its results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"
#include "trainer/eval/openai/openai_client.h"

namespace taopd {

// The options of the subcommand eval, besides its configuration.
struct EvalRequest {
  // Empty: student.model of the configuration or, with an endpoint, the server's model.
  std::string model_dir;
  // The results as JSON.
  std::string output_path = "evaluation/results.json";
  // Every response as JSON Lines, the journal of the evaluation. Empty: beside the results.
  std::string responses_path;
  // Starts again, even if the journal holds responses.
  bool overwrite = false;
  // An OpenAI-compatible server. Without a url: a model in this process.
  OpenAiOptions server;

  // The path of the journal: responses_path, or beside the results.
  std::string ResponsesPath() const;
};

// Describes everything that determines the responses of an evaluation: the settings, the bytes of
// data.val, and the model. A server's model is described by URL and name, and a model directory by
// the sizes and times of its weight files, because hashing the weights would take longer than many
// evaluations. EvalJournal refuses to continue a journal with another description.
absl::StatusOr<nlohmann::ordered_json> DescribeEvaluation(const TrainConfig& config,
                                                          const EvalRequest& request,
                                                          const std::string& model);

// Prints the table, and below it what was omitted from the prompts. Writes the results to
// request.output_path.
absl::Status ReportEvaluation(const TrainConfig& config, const EvalRequest& request,
                              const std::string& model, const PromptDataset& problems,
                              const EvalResult& result);

}  // namespace taopd
