// An OpenAI-compatible server: vLLM, SGLang, or taopd-teacher.
#include <utility>

#include "common/io/jsonl.h"
#include "trainer/commands/generate/response_generator.h"
#include "trainer/eval/openai/openai_client.h"
#include "trainer/setup/prompts.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Gives an error of the server its code.
template <typename Result>
Result FromServer(Result result) {
  const absl::Status& status = ToStatus(result);
  const bool is_away = absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
  const bool is_usage = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  const ExitCode code = is_away ? kExitUnavailable : is_usage ? kExitUsage : kExitData;
  return WithExitCode(code, std::move(result));
}

class EndpointGenerator final : public ResponseGenerator {
 public:
  EndpointGenerator(GenerateRequest request, OpenAiOptions options, ServerAddress server)
      : request_(std::move(request)),
        options_(std::move(options)),
        client_(options_, std::move(server), Clock::Real()) {}

  absl::Status Connect() {
    TAOPD_ASSIGN_OR_RETURN(model_, FromServer(client_.ChooseModel()));
    return absl::OkStatus();
  }

  absl::StatusOr<ResponseText> Generate(
      const ResponsePrompt& prompt, uint64_t seed,
      const std::function<void(std::string_view)>& on_text) override {
    const bool is_chat = !prompt.messages.is_null();
    const std::string path = is_chat ? "/chat/completions" : "/completions";
    ResponseText generated;
    OpenAiStream stream([&](std::string_view text) {
      generated.text += text;
      on_text(text);
    });
    const auto reply =
        client_.Send(path, JsonText(Body(prompt, seed)), absl::Seconds(options_.timeout_s),
                     [&](std::string_view piece) { stream.Push(piece); });
    TAOPD_RETURN_IF_ERROR(FromServer(reply.status()));
    TAOPD_RETURN_IF_ERROR(FromServer(Annotate(stream.End(), client_.AddressOf(path))));
    generated.truncated = stream.finish_reason() == "length";
    return generated;
  }

 private:
  Json Body(const ResponsePrompt& prompt, uint64_t seed) const {
    Json body = client_.PromptBody(model_, prompt.messages, prompt.ids, prompt.text);
    body["max_tokens"] = request_.max_new_tokens.value_or(kDefaultMaxNewTokens);
    body["temperature"] = request_.temperature;
    body["top_p"] = request_.top_p;
    // Not in OpenAI's API, so it is sent only if it is set.
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
  TAOPD_RETURN_IF_ERROR(BadUsage(ReadApiKey(request.api_key_env, &options)));
  TAOPD_ASSIGN_OR_RETURN(options.chat_template_kwargs,
                         BadUsage(ParseChatTemplateKwargs(request.chat_template_kwargs)));
  options.concurrency = 1;
  TAOPD_ASSIGN_OR_RETURN(ServerAddress server,
                         BadUsage(Annotate(ParseOpenAiUrl(options.url), "--endpoint")));
  auto generator =
      std::make_unique<EndpointGenerator>(request, std::move(options), std::move(server));
  TAOPD_RETURN_IF_ERROR(generator->Connect());
  return generator;
}

}  // namespace taopd
