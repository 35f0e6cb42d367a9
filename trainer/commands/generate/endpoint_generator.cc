// An OpenAI-compatible server: vLLM, SGLang, or taopd-teacher.
#include <utility>

#include "trainer/commands/generate/response_generator.h"
#include "trainer/commands/prompts.h"
#include "trainer/eval/openai/openai_client.h"
#include "trainer/eval/openai/openai_stream.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

absl::Status EndpointFailed(const absl::Status& status) {
  const bool is_away = absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
  const bool is_usage = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return WithExitCode(is_away ? kExitUnavailable : is_usage ? kExitUsage : kExitData, status);
}

class EndpointGenerator final : public ResponseGenerator {
 public:
  EndpointGenerator(GenerateRequest request, OpenAiOptions options, ServerAddress server)
      : request_(std::move(request)),
        options_(std::move(options)),
        client_(options_, std::move(server), Clock::Real()) {}

  absl::Status Connect() {
    auto model = client_.ChooseModel();
    if (!model.ok()) return EndpointFailed(model.status());
    model_ = *std::move(model);
    return absl::OkStatus();
  }

  absl::StatusOr<GeneratedText> Generate(
      const GenerationPrompt& prompt, uint64_t seed,
      const std::function<void(std::string_view)>& on_text) override {
    const bool is_chat = !prompt.messages.is_null();
    const std::string path = is_chat ? "/chat/completions" : "/completions";
    GeneratedText generated;
    OpenAiStream stream([&](std::string_view text) {
      generated.text += text;
      on_text(text);
    });
    const auto reply = client_.Send(
        path, Body(prompt, seed).dump(-1, ' ', false, Json::error_handler_t::replace),
        absl::Seconds(options_.timeout_s), [&](std::string_view piece) { stream.Push(piece); });
    if (!reply.ok()) return EndpointFailed(reply.status());
    if (absl::Status ended = stream.End(); !ended.ok())
      return EndpointFailed(Annotate(ended, client_.AddressOf(path)));
    generated.truncated = stream.finish_reason() == "length";
    return generated;
  }

 private:
  Json Body(const GenerationPrompt& prompt, uint64_t seed) const {
    Json body = {{"model", model_}};
    if (!prompt.messages.is_null()) {
      body["messages"] = prompt.messages;
      if (!options_.chat_template_kwargs.empty())
        body["chat_template_kwargs"] = options_.chat_template_kwargs;
    } else if (!prompt.ids.empty()) {
      body["prompt"] = prompt.ids;
    } else {
      body["prompt"] = prompt.text;
    }
    body["max_tokens"] = request_.max_new_tokens.value_or(kDefaultMaxNewTokens);
    body["temperature"] = request_.temperature;
    body["top_p"] = request_.top_p;
    // vLLM and SGLang know it, OpenAI does not.
    if (request_.top_k > 0) body["top_k"] = request_.top_k;
    body["seed"] = seed;
    body["stream"] = true;
    return body;
  }

  const GenerateRequest request_;
  const OpenAiOptions options_;
  OpenAiClient client_;
  std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ResponseGenerator>> MakeEndpointGenerator(
    const GenerateRequest& request) {
  OpenAiOptions options;
  options.url = request.endpoint;
  options.model = request.model_dir;
  if (absl::Status key = ReadApiKey(request.api_key_env, &options); !key.ok()) return BadUsage(key);
  auto kwargs = ParseChatTemplateKwargs(request.chat_template_kwargs);
  if (!kwargs.ok()) return BadUsage(kwargs.status());
  options.chat_template_kwargs = *std::move(kwargs);
  options.concurrency = 1;
  auto server = ParseOpenAiUrl(options.url);
  if (!server.ok()) return BadUsage(Annotate(server.status(), "--endpoint"));
  auto generator =
      std::make_unique<EndpointGenerator>(request, std::move(options), *std::move(server));
  TAOPD_RETURN_IF_ERROR(generator->Connect());
  return generator;
}

}  // namespace taopd
