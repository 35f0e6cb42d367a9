#include "trainer/eval/openai/openai_client.h"

#include <algorithm>
#include <utility>

#include "trainer/http/server_replies.h"

namespace taopd {
namespace {

constexpr char kApiKeyVariable[] = "OPENAI_API_KEY";
// The time limit of the request for the list of models.
constexpr absl::Duration kListTimeout = absl::Seconds(30);
constexpr int64_t kMaxReplyBytes = int64_t{64} << 20;
constexpr absl::Duration kMaxPause = absl::Seconds(30);
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(60);

bool MayPass(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsResourceExhausted(error) ||
         absl::IsInternal(error) || absl::IsDeadlineExceeded(error);
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
  const auto key = ApiKeyFrom(options->api_key_env, "--api-key-env");
  options->api_key = key.value_or("");
  return variable.empty() ? absl::OkStatus() : key.status();
}

struct OpenAiClient::Attempt {
  absl::StatusOr<std::string> reply;
  absl::Duration retry_after;  // as the server asks
};

OpenAiClient::OpenAiClient(const OpenAiOptions& options, ServerAddress server, Clock* clock)
    : options_(options), server_(std::move(server)), clock_(clock), http_({server_}, options_) {}

absl::StatusOr<std::string> OpenAiClient::Send(
    const std::string& path, const std::string& body, absl::Duration timeout,
    const std::function<void(std::string_view)>& on_data) {
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
    const Attempt attempt = SendOnce(path, body, timeout, pass_on);
    const absl::Status error = Annotate(attempt.reply.status(), AddressOf(path));
    if (error.ok()) return attempt.reply;
    if (!MayPass(error) || has_data) return error;
    if (num_attempts > options_.max_retries || given_up_) {
      return Unavailable("after ", num_attempts,
                         num_attempts == 1 ? " attempt: " : " attempts: ", error.message());
    }
    ++num_retries_;
    Pause(std::max(pause, std::min(attempt.retry_after, kMaxRetryAfter)));
    pause = std::min(2 * pause, kMaxPause);
  }
}

// Sleeps in short pieces, so that an evaluation that fails elsewhere ends soon.
void OpenAiClient::Pause(absl::Duration duration) const {
  const absl::Time end = clock_->Now() + duration;
  for (absl::Time now = clock_->Now(); now < end && !given_up_; now = clock_->Now()) {
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

OpenAiClient::Attempt OpenAiClient::SendOnce(const std::string& path, const std::string& body,
                                             absl::Duration timeout,
                                             const std::function<void(std::string_view)>& on_data) {
  absl::StatusOr<HttpReply> reply =
      http_.Exchange(/*server=*/0, path, body, kMaxReplyBytes, timeout, on_data);
  if (!reply.ok()) return {reply.status(), absl::ZeroDuration()};
  if (reply->status == 200) return {std::move(reply->body), absl::ZeroDuration()};
  return {ErrorOfReply(*reply, options_), reply->retry_after.value_or(absl::ZeroDuration())};
}

}  // namespace taopd
