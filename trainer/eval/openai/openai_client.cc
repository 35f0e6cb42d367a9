#include "trainer/eval/openai/openai_client.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/io/jsonl.h"
#include "trainer/net/server_replies.h"

namespace taopd {
namespace {

constexpr char kApiKeyVariable[] = "OPENAI_API_KEY";
// The time limit of the request for the list of models.
constexpr absl::Duration kListTimeout = absl::Seconds(30);
constexpr int64_t kMaxReplyBytes = int64_t{64} << 20;
constexpr absl::Duration kMaxPause = absl::Seconds(30);

using Json = nlohmann::ordered_json;

// Returns the text in a chunk, or null.
const Json* TextOf(const Json& choice) {
  if (choice.contains("text")) return &choice.at("text");
  if (!choice.contains("delta") || !choice.at("delta").is_object()) return nullptr;
  const Json& delta = choice.at("delta");
  return delta.contains("content") ? &delta.at("content") : nullptr;
}

}  // namespace

absl::StatusOr<ServerAddress> ParseOpenAiUrl(const std::string& text) {
  absl::StatusOr<ServerAddress> server = ParseHttpUrl(text);
  if (!server.ok()) {
    return InvalidArgument("endpoint \"", text, "\" ", server.status().message(),
                           ": it is not a URL such as http://127.0.0.1:8000");
  }
  if (server->prefix.empty()) server->prefix = "/v1";
  return server;
}

absl::Status ReadApiKey(const std::string& variable, OpenAiOptions* options) {
  options->api_key_env = variable.empty() ? kApiKeyVariable : variable;
  const char* const usual = std::getenv(kApiKeyVariable);
  if (variable.empty() && (usual == nullptr || *usual == '\0')) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(options->api_key, ApiKeyFrom(options->api_key_env, "--api-key-env"));
  return absl::OkStatus();
}

struct OpenAiClient::Attempt {
  absl::StatusOr<std::string> reply;
  absl::Duration retry_after;  // as the server asks
};

OpenAiClient::OpenAiClient(const OpenAiOptions& options, ServerAddress server, Clock* clock)
    : options_(options), server_(std::move(server)), clock_(clock), http_({server_}, options_) {}

absl::StatusOr<std::string> OpenAiClient::Send(const std::string& path, const std::string& body,
                                               absl::Duration timeout,
                                               const std::function<void(std::string_view)>& on_data,
                                               const std::stop_token& stop) {
  bool has_data = false;
  std::function<void(std::string_view)> pass_on;
  if (on_data) {
    pass_on = [&](std::string_view data) {
      has_data = true;
      on_data(data);
    };
  }
  absl::Duration pause = absl::Seconds(options_.first_pause_s);
  for (int64_t num_attempts = 1;; ++num_attempts) {
    const Attempt attempt = SendOnce(path, body, timeout, pass_on, stop);
    const absl::Status error = Annotate(attempt.reply.status(), AddressOf(path));
    if (error.ok()) return attempt.reply;
    if (!IsTransient(error) || has_data) return error;
    if (num_attempts > options_.max_retries) {
      return Unavailable("after ", num_attempts,
                         num_attempts == 1 ? " attempt: " : " attempts: ", error.message());
    }
    ++num_retries_;
    Pause(std::max(pause, std::min(attempt.retry_after, kMaxRetryAfter)), stop);
    pause = std::min(2 * pause, kMaxPause);
  }
}

// Sleeps in short pieces, so that an evaluation that fails elsewhere ends soon.
void OpenAiClient::Pause(absl::Duration duration, const std::stop_token& stop) const {
  const absl::Time end = clock_->Now() + duration;
  for (absl::Time now = clock_->Now(); now < end && !stop.stop_requested(); now = clock_->Now()) {
    clock_->SleepFor(std::min(end - now, absl::Milliseconds(100)));
  }
}

absl::StatusOr<std::string> OpenAiClient::ChooseModel() {
  const std::string path = "/models";
  const auto reply = Send(path, /*body=*/"", kListTimeout);
  // A server that does not list its models may have the named one.
  if (absl::IsNotFound(reply.status()) && !options_.model.empty()) return options_.model;
  TAOPD_RETURN_IF_ERROR(reply.status());
  const absl::StatusOr<ListedModel> model = FindListedModel(*reply, options_.model);
  TAOPD_RETURN_IF_ERROR(Annotate(model.status(), AddressOf(path)));
  return model->id;
}

Json OpenAiClient::PromptBody(const std::string& model, const Json& messages, const Json& ids,
                              const std::string& text) const {
  Json body = {{"model", model}};
  if (messages.is_null()) {
    body["prompt"] = ids.empty() ? Json(text) : ids;
    return body;
  }
  body["messages"] = messages;
  if (!options_.chat_template_kwargs.empty())
    body["chat_template_kwargs"] = options_.chat_template_kwargs;
  return body;
}

OpenAiClient::Attempt OpenAiClient::SendOnce(const std::string& path, const std::string& body,
                                             absl::Duration timeout,
                                             const std::function<void(std::string_view)>& on_data,
                                             const std::stop_token& stop) {
  absl::StatusOr<HttpReply> reply =
      http_.Exchange(/*server=*/0, path, body, kMaxReplyBytes, timeout, on_data, stop);
  if (!reply.ok()) return {reply.status(), absl::ZeroDuration()};
  if (reply->status == 200) return {std::move(reply->body), absl::ZeroDuration()};
  return {ErrorOfReply(*reply, options_), reply->retry_after.value_or(absl::ZeroDuration())};
}

void OpenAiStream::Push(std::string_view bytes) {
  line_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line = std::string_view(line_).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    HandleLine(line);
  }
  line_.erase(0, begin);
}

// Other fields than data, comments and empty lines have no meaning here.
void OpenAiStream::HandleLine(std::string_view line) {
  constexpr std::string_view kData = "data:";
  if (!status_.ok() || is_done_ || !line.starts_with(kData)) return;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    is_done_ = true;
    return;
  }
  const absl::StatusOr<Json> chunk = ParseOrderedJson(std::string(line), "a chunk of the reply");
  if (!chunk.ok() || !chunk->is_object()) {
    status_ = DataLoss("a chunk of the reply is not a JSON object");
    return;
  }
  if (chunk->contains("error")) {
    const Json& error = chunk->at("error");
    const bool has_message = error.is_object() && error.contains("message");
    status_ =
        Internal("the server ends the reply: ", (has_message ? error.at("message") : error).dump());
    return;
  }
  const auto choices = chunk->find("choices");
  if (choices == chunk->end() || !choices->is_array() || choices->empty()) return;  // usage
  const Json& choice = choices->front();
  if (!choice.is_object()) {
    status_ = DataLoss("a chunk of the reply holds no choice");
    return;
  }
  const Json* text = TextOf(choice);
  if (text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty())
    on_text_(text->get_ref<const std::string&>());
  const auto finish = choice.find("finish_reason");
  if (finish != choice.end() && finish->is_string()) finish_reason_ = finish->get<std::string>();
}

absl::Status OpenAiStream::End() const {
  TAOPD_RETURN_IF_ERROR(status_);
  if (is_done_ || !finish_reason_.empty()) return absl::OkStatus();
  return DataLoss("the reply is not a stream of server-sent events, or it has ended early");
}

}  // namespace taopd
