// The options of the subcommand eval, beside its configuration.
#pragma once

#include <cstdint>
#include <string>

namespace taopd {

struct EvalRequest {
  // Empty: student.model of the configuration or, with an endpoint, the server's model.
  std::string model_dir;
  // The results as JSON.
  std::string output_path = "evaluation/results.json";
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

  // The path of the journal: responses_path, or beside the results.
  std::string ResponsesPath() const;
};

}  // namespace taopd
