// What the subcommands do, without LibTorch in sight: main parses the command line and calls these.
// Each returns nothing when it is done, or the failure with its exit code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/control/control_server.h"
#include "trainer/exit_code.h"
#include "trainer/run/run_directory.h"
#include "trainer/sft_config.h"
#include "trainer/train_config.h"

namespace taopd {

// The training loop; `state` carries stop and pause requests from outside.
std::optional<RunFailure> RunTraining(TrainConfig config, const StartMode& mode, RunState* state);
std::optional<RunFailure> RunSft(SftConfig config, const StartMode& mode, RunState* state);

struct EvalRequest {
  std::string
      model_dir;  // empty: student.model of the configuration; with an endpoint: the server's model
  std::string output_path;     // results as JSON
  std::string responses_path;  // every response as JSON Lines, the journal of the evaluation;
                               // empty: beside the results
  bool overwrite = false;      // start anew whatever the journal holds
  std::string endpoint;  // URL of an OpenAI-compatible server in place of a model in this process;
                         // empty: none
  std::string api_key_env;   // environment variable of its API key; empty: OPENAI_API_KEY, if set
  int64_t concurrency = 32;  // requests in flight
  double timeout_s = 1800;   // for one attempt at one response
  int64_t max_retries = 6;
};
// Evaluates on data.val, prints a table and writes the results.
std::optional<RunFailure> RunEval(TrainConfig config, const EvalRequest& request);

struct ShowDataRequest {
  bool json = false;
  int64_t num_samples = 3;  // rendered prompts of data.train and of data.val
};
// Prints what a run would see of data.train and data.val.
std::optional<RunFailure> RunShowData(const TrainConfig& config, const ShowDataRequest& request);

inline constexpr int64_t kDefaultMaxNewTokens = 256;

struct GenerateRequest {
  std::string model_dir;
  std::string prompt;
  std::vector<int64_t> prompt_ids;  // in place of prompt
  // Absent: kDefaultMaxNewTokens, or fewer if the model's last position comes first.
  std::optional<int64_t> max_new_tokens;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  int64_t seed = 0;
  std::string dtype = "auto";
  std::string device = "auto";
};
// Streams the response to standard output: text, or ids where the model has no tokenizer.
std::optional<RunFailure> RunGenerate(const GenerateRequest& request);

}  // namespace taopd
