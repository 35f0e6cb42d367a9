// The source of continuations and answers for the subcommand generate: a model in this process or
// an OpenAI-compatible server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "trainer/run/exit_status.h"

namespace taopd {

inline constexpr int64_t kDefaultMaxNewTokens = 256;

// The options of the command.
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

// The prompt of a response. One of the three is set.
struct ResponsePrompt {
  std::string text;
  std::vector<int64_t> ids;
  nlohmann::ordered_json messages;  // a chat; null for any other prompt
};

struct ResponseText {
  std::string text;        // empty if the model has no tokenizer
  bool truncated = false;  // cut at --max-new-tokens or at the model's last position
};

// Not thread-safe.
class ResponseGenerator {
 public:
  virtual ~ResponseGenerator() = default;
  // Generates one response and passes the pieces of its text to `on_text` as they come. An error
  // has an exit code.
  virtual absl::StatusOr<ResponseText> Generate(
      const ResponsePrompt& prompt, uint64_t seed,
      const std::function<void(std::string_view)>& on_text) = 0;
};

// Loads request.model_dir. For a chat it reads the chat template as well, and its engine holds
// conversations as long as the model and the KV cache allow.
absl::StatusOr<std::unique_ptr<ResponseGenerator>> MakeLocalGenerator(
    const GenerateRequest& request);

// Connects to request.endpoint.
absl::StatusOr<std::unique_ptr<ResponseGenerator>> MakeEndpointGenerator(
    const GenerateRequest& request);

}  // namespace taopd
