// The source of continuations and answers for the subcommand generate: a model in this process or
// an OpenAI-compatible server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "trainer/commands/commands.h"

namespace taopd {

// One of the three is set.
struct GenerationPrompt {
  std::string text;
  std::vector<int64_t> ids;
  nlohmann::ordered_json messages;  // a chat; null if the prompt is none
};

struct GeneratedText {
  std::string text;        // empty if the model has no tokenizer
  bool truncated = false;  // cut at --max-new-tokens or at the model's last position
};

// Not thread-safe.
class ResponseGenerator {
 public:
  virtual ~ResponseGenerator() = default;
  // Generates one response. Passes its text to `on_text`, in pieces, as it comes. The failure has
  // an exit code.
  virtual absl::StatusOr<GeneratedText> Generate(
      const GenerationPrompt& prompt, uint64_t seed,
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
