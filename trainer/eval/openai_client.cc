#include "trainer/eval/openai_client.h"

#include <absl/strings/numbers.h>
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxReplyBytes = size_t{64} << 20;
constexpr absl::Duration kMaxPause = absl::Seconds(30);
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(60);

// Returns the message of an error reply in any of the forms that servers use, or the start of the
// body.
std::string ServersWords(const std::string& body) {
  const Json value = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) {
    const auto error = value.find("error");
    if (error != value.end() && error->is_object() && error->contains("message") &&
        error->at("message").is_string()) {
      return error->at("message").get<std::string>();
    }
    if (error != value.end() && error->is_string()) return error->get<std::string>();
    for (const char* key : {"message", "detail"}) {
      if (value.contains(key) && value.at(key).is_string()) return value.at(key).get<std::string>();
    }
  }
  return body.substr(0, 300);
}

absl::Duration RetryAfter(const httplib::Response& response) {
  int64_t seconds = 0;
  const bool given = absl::SimpleAtoi(response.get_header_value("Retry-After"), &seconds);
  return given && seconds > 0 ? absl::Seconds(seconds) : absl::ZeroDuration();
}

}  // namespace

absl::StatusOr<OpenAiUrl> ParseOpenAiUrl(const std::string& text) {
  const bool http = text.compare(0, 7, "http://") == 0, https = text.compare(0, 8, "https://") == 0;
  const size_t begin = http ? 7 : 8;
  if ((!http && !https) || text.size() == begin || text[begin] == '/' ||
      text.find_first_of(" \t\n?#") != std::string::npos) {
    return InvalidArgument("endpoint \"", text, "\" is not a URL such as http://127.0.0.1:8000");
  }
  const size_t slash = text.find('/', begin);
  OpenAiUrl url;
  url.host = text.substr(0, slash);
  url.prefix = slash == std::string::npos ? "" : text.substr(slash);
  while (!url.prefix.empty() && url.prefix.back() == '/') url.prefix.pop_back();
  if (url.prefix.empty()) url.prefix = "/v1";
  return url;
}

struct OpenAiClient::Attempt {
  Attempt(absl::StatusOr<Json> attempt_reply, bool another_may_succeed = false,
          absl::Duration asked_pause = absl::ZeroDuration())
      : reply(std::move(attempt_reply)), may_pass(another_may_succeed), retry_after(asked_pause) {}
  absl::StatusOr<Json> reply;
  bool may_pass;
  absl::Duration retry_after;  // the pause that the server requests
};

OpenAiClient::OpenAiClient(const OpenAiOptions& options, OpenAiUrl url, Clock* clock)
    : options_(options), url_(std::move(url)), clock_(clock) {}

OpenAiClient::~OpenAiClient() = default;

std::unique_ptr<httplib::Client> OpenAiClient::Open(double timeout_s) const {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  auto connection = std::make_unique<httplib::Client>(url_.host);
  connection->set_connection_timeout(milliseconds(std::min(timeout_s, 30.0)));
  connection->set_read_timeout(milliseconds(timeout_s));
  connection->set_write_timeout(milliseconds(timeout_s));
  connection->set_keep_alive(true);
  return connection;
}

absl::StatusOr<Json> OpenAiClient::Send(httplib::Client* connection, const std::string& method,
                                        const std::string& path, const std::string& body) {
  absl::Duration pause = absl::Seconds(options_.first_pause_s);
  for (int64_t num_attempts = 1;; ++num_attempts) {
    Attempt attempt = SendOnce(connection, method, path, body);
    if (attempt.reply.ok() || !attempt.may_pass) return std::move(attempt.reply);
    if (num_attempts > options_.max_retries || given_up_) {
      return Annotate(attempt.reply.status(),
                      Concat("after ", num_attempts, num_attempts == 1 ? " attempt" : " attempts"));
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

OpenAiClient::Attempt OpenAiClient::SendOnce(httplib::Client* connection, const std::string& method,
                                             const std::string& path,
                                             const std::string& body) const {
  httplib::Request request;
  request.method = method;
  request.path = url_.prefix + path;
  request.set_header("Accept", "application/json");
  if (!options_.api_key.empty()) request.set_header("Authorization", "Bearer " + options_.api_key);
  if (!body.empty()) {
    request.set_header("Content-Type", "application/json");
    request.body = body;
  }
  std::string received;
  bool too_long = false;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_long = received.size() + size > kMaxReplyBytes;
    if (!too_long) received.append(data, size);
    return !too_long;
  };
  const std::string where = AddressOf(path);
  const httplib::Result result = connection->send(request);
  if (too_long) {
    return {ResourceExhausted(where, ": the reply is longer than ", kMaxReplyBytes, " bytes")};
  }
  if (!result) {
    return {Unavailable(where, ": ", httplib::to_string(result.error())), /*may_pass=*/true};
  }
  const int status = result->status;
  if (status == 200) {
    auto value = ParseOrderedJson(received, where);
    if (value.ok() && !value->is_object()) {
      return {DataLoss(where, ": the reply is not a JSON object")};
    }
    return {std::move(value)};
  }
  const std::string message = Concat(where, ": HTTP ", status, ": ", ServersWords(received));
  if (status == 401 || status == 403) {
    const std::string key =
        options_.api_key.empty() ? " (no API key was sent" : " (an API key was sent";
    const std::string variable =
        options_.api_key_env.empty()
            ? ""
            : "; it is read from the environment variable " + options_.api_key_env;
    return {absl::PermissionDeniedError(Concat(message, key, variable, ")"))};
  }
  if (status == 408 || status == 429 || status >= 500) {
    return {Unavailable(message), /*may_pass=*/true, RetryAfter(*result)};
  }
  if (status == 404) return {NotFound(message)};
  return {InvalidArgument(message)};
}

}  // namespace taopd
