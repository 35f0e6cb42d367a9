// Requests to a server that speaks OpenAI's API, with retries.
//
// A transient failure is retried after a pause: no connection, a timeout, or one of the HTTP
// statuses 408, 429 and 5xx. Any other failure is final.
#pragma once

#include <absl/time/time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "trainer/net/http_client.h"
#include "trainer/net/server_address.h"

namespace taopd {

struct OpenAiOptions : ClientCredentials {
  std::string url;  // http://host:port or https://host/prefix; /v1 is added to a URL without a path
  std::string model;                            // if empty, the first model that the server lists
  nlohmann::ordered_json chat_template_kwargs;  // sent with chats (vLLM) unless null
  int64_t concurrency = 32;                     // maximum number of requests in flight
  double timeout_s = 1800;                      // time limit of one attempt
  int64_t max_retries = 6;                      // retries of one request
  // The pause before the first retry. Each further pause is twice as long, up to 30 s. If the
  // server sends Retry-After, the pause is at least that long, up to 60 s.
  double first_pause_s = 0.5;
};

// Reads OpenAiOptions::url. Returns INVALID_ARGUMENT if it is not an http or https URL, or has a
// query or a fragment.
absl::StatusOr<ServerAddress> ParseOpenAiUrl(const std::string& text);

// Fills api_key and api_key_env from an environment variable: the named one, which must hold a key,
// or OPENAI_API_KEY, if it is set, for an empty name.
absl::Status ReadApiKey(const std::string& variable, OpenAiOptions* options);

// Thread-safe.
class OpenAiClient {
 public:
  // `clock`, which must outlive the client, tells the time during pauses and sleeps.
  OpenAiClient(const OpenAiOptions& options, ServerAddress server, Clock* clock);

  // Returns the address of a path, for messages.
  std::string AddressOf(const std::string& path) const {
    return server_.Url() + server_.prefix + path;
  }

  // Sends a request and returns the body of the 200 reply. `path` comes after the prefix; an empty
  // `body` sends a GET. `timeout` limits each attempt. Errors name the address and hold the
  // server's own words: UNAVAILABLE after the last retry, else those of ErrorOfReply
  // (server_replies.h), or DATA_LOSS for a reply that is too long.
  // `on_data`, if it is not null, gets the body piece by piece as it arrives; after the first piece
  // a request is not retried. `stop` ends the request soon, with CANCELLED.
  absl::StatusOr<std::string> Send(const std::string& path, const std::string& body,
                                   absl::Duration timeout,
                                   const std::function<void(std::string_view)>& on_data = nullptr,
                                   const std::stop_token& stop = {});

  // Asks GET /models whether the server has options.model, or for its first model if options.model
  // is empty, and returns the model. A server that does not list its models is accepted if a model
  // is named. Returns NOT_FOUND with the list of the server's models.
  absl::StatusOr<std::string> ChooseModel();

  // Returns the members of a request that hold its model and its prompt: a chat of `messages`
  // unless they are null, else the token ids unless there are none, else the text.
  nlohmann::ordered_json PromptBody(const std::string& model,
                                    const nlohmann::ordered_json& messages,
                                    const nlohmann::ordered_json& ids,
                                    const std::string& text) const;

  // Returns the number of retries so far.
  int64_t num_retries() const { return num_retries_; }

 private:
  struct Attempt;
  Attempt SendOnce(const std::string& path, const std::string& body, absl::Duration timeout,
                   const std::function<void(std::string_view)>& on_data,
                   const std::stop_token& stop);
  void Pause(absl::Duration duration, const std::stop_token& stop) const;

  const OpenAiOptions options_;
  const ServerAddress server_;
  Clock* const clock_;
  HttpClient http_;
  std::atomic<int64_t> num_retries_{0};
};

// Reads the reply of an OpenAI-compatible server to a request with "stream": true, as it comes:
// server-sent events whose data are JSON chunks of a completion or of a chat, then "[DONE]".
// Not thread-safe.
class OpenAiStream {
 public:
  // `on_text` receives the text of the first choice, piece by piece.
  explicit OpenAiStream(std::function<void(std::string_view)> on_text)
      : on_text_(std::move(on_text)) {}

  // Parses the next bytes of the reply, which may be cut anywhere.
  void Push(std::string_view bytes);
  // Returns DATA_LOSS if the reply was not of this form or ended early, and INTERNAL with the
  // server's message if it reports an error within the stream.
  absl::Status End() const;
  // Returns the reason why the response ended: "stop", "length", ...
  const std::string& finish_reason() const { return finish_reason_; }

 private:
  void HandleLine(std::string_view line);

  const std::function<void(std::string_view)> on_text_;
  std::string line_;  // the bytes of a line that is not complete
  std::string finish_reason_;
  absl::Status status_;
  bool is_done_ = false;
};

}  // namespace taopd
