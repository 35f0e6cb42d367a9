// The subcommands that need a model or a data set, as functions. trainer/cli parses the command
// line and calls them. This header does not include LibTorch. Each function returns nullopt on
// success, otherwise the failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/step_estimate.h"
#include "trainer/config/sft_config.h"
#include "trainer/config/train_config.h"
#include "trainer/control/run_state.h"
#include "trainer/run/exit_status.h"
#include "trainer/run/run_directory.h"

namespace taopd {

// Distils the teacher into the student. `state` carries requests from other threads to the training
// loop and its status back; it must outlive the call.
absl::Status RunTraining(TrainConfig config, const StartMode& mode, RunState* state);

struct PlanCommandOptions {
  // The memory of another device than this machine's, "80GB" or "cuda:80GB"; may be empty.
  std::string device_memory;
  int64_t num_ranks = 1;             // the plan is that of one of this many processes
  std::optional<DeviceRates> rates;  // of each rank; if set, the time of a step is estimated
};
// Prints the memory plan of a distillation run. Fails with kExitOutOfMemory, after the table, if
// the run does not fit.
absl::Status RunPlan(const TrainConfig& config, const PlanCommandOptions& options);

// Trains a model on prompts with given responses. `state` is that of RunTraining.
absl::Status RunSft(SftConfig config, const StartMode& mode, RunState* state);

struct ExportRequest {
  std::string run_dir;
  std::string output_dir;
  int64_t step = -1;  // the newest complete checkpoint if negative
  // The dtype of a model that is merged from an adapter and its base.
  std::string dtype = "auto";
};

// Writes the model of a checkpoint, whose files are verified first, to output_dir, which must not
// exist or be empty. The model is copied; an adapter is merged into its base.
absl::Status RunExport(const ExportRequest& request);

struct EvalRequest {
  // Empty: student.model of the configuration or, with an endpoint, the server's model.
  std::string model_dir;
  // The results as JSON.
  std::string output_path;
  // Every response as JSON Lines, the journal of the evaluation. Empty: beside the results.
  std::string responses_path;
  // Starts anew, whatever the journal holds.
  bool overwrite = false;
  // URL of an OpenAI-compatible server. Empty: a model in this process.
  std::string endpoint;
  // Environment variable that holds the server's API key. Empty: OPENAI_API_KEY, if it is set.
  std::string api_key_env;
  // Requests in flight at the server.
  int64_t concurrency = 32;
  // Time for one attempt at one response.
  double timeout_s = 1800;
  int64_t max_retries = 6;
};

// The path of the journal: request.responses_path, or beside the results.
std::string ResponsesPath(const EvalRequest& request);

// Evaluates a model on data.val, prints a table and writes the results. The journal holds every
// response that has been graded, whenever the process ends.
absl::Status RunEval(TrainConfig config, const EvalRequest& request);

struct ShowDataRequest {
  bool json = false;
  int64_t num_samples = 3;  // rendered prompts to show of data.train and of data.val
};

// Prints what a run would see of data.train and data.val. Reads no weights.
absl::Status RunShowData(const TrainConfig& config, const ShowDataRequest& request);
// Prints what supervised training would see of data.train and data.val, and which tokens it learns.
// Reads no weights.
absl::Status RunShowSftData(const SftConfig& config, const ShowDataRequest& request);

inline constexpr int64_t kDefaultMaxNewTokens = 256;

struct GenerateRequest {
  std::string model_dir;  // with an endpoint, the server's model; empty: its first
  std::string prompt;
  // Used instead of `prompt` if not empty.
  std::vector<int64_t> prompt_ids;
  // Absent: kDefaultMaxNewTokens, or fewer if the model's last position comes first.
  std::optional<int64_t> max_new_tokens;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  int64_t seed = 0;
  std::string dtype = "auto";
  std::string device = "auto";
  // Answer as an assistant, through the model's chat template: `prompt` if it is not empty,
  // otherwise each line of standard input, until its end or "/quit", as one conversation.
  bool chat = false;
  std::string system;                // the system message of a chat; may be empty
  std::string chat_template_kwargs;  // variables of the chat template, a JSON object; may be empty
  // URL of an OpenAI-compatible server. Empty: a model in this process.
  std::string endpoint;
  std::string api_key_env;  // as in EvalRequest
};

// Continues a prompt, or chats, and prints the response as it comes: text, or ids if the model has
// no tokenizer.
absl::Status RunGenerate(const GenerateRequest& request);

struct ScoreRequest {
  // JSON Lines with prompt_ids and response_ids, and with what the teacher's prompt is made of if
  // the configuration gives it one.
  std::string input_path;
  int64_t concurrency = 256;
};

// Has the teacher of the configuration score sequences of a file, behind the teacher's own prompts
// if data.teacher_prompt_key or data.teacher_prompt_template asks for them. This fills its score
// cache. Prints what it did.
absl::Status RunScore(const TrainConfig& config, const ScoreRequest& request);

struct BenchTeacherRequest {
  double rate = 0;  // requests per second in an open loop; 0 for a closed loop
  int64_t concurrency = 8;
  int64_t num_requests = 100;
  double duration_s = 0;                                   // in place of num_requests
  std::pair<int64_t, int64_t> prompt_tokens = {128, 128};  // shortest and longest
  std::pair<int64_t, int64_t> response_tokens = {128, 128};
  int64_t vocab_size = 0;  // size for the random ids; 0 means the teacher's, or 1000 if unknown
  int64_t seed = 0;
  std::string json_path;  // path of the results as JSON; empty for none
};

// Puts a load on the teacher of the configuration and prints a table of what it measured.
absl::Status RunBenchTeacher(const TrainConfig& config, const BenchTeacherRequest& request);

struct BenchRolloutRequest {
  int64_t num_requests = 64;  // to each server
  int64_t prompt_tokens = 128;
  int64_t response_tokens = 128;  // the largest number; a response may end before
  std::string json_path;          // path of the results as JSON; empty for none
};

// Gives the weights of student.model to each server of rollout.endpoints, generates, and prints a
// table of what it measured: each server alone, then all of them together.
absl::Status RunBenchRollout(const TrainConfig& config, const BenchRolloutRequest& request);

}  // namespace taopd
