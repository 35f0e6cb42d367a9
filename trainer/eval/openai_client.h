// Requests to a server that speaks OpenAI's API, with retries.
//
// A transient failure is retried after a pause: no connection, a timeout, or one of the HTTP
// statuses 408, 429 and 5xx. Any other failure is final.
#pragma once

#include <absl/time/time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace httplib {
class Client;
}

namespace taopd {

struct OpenAiOptions {
  std::string url;  // http://host:port or https://host/prefix; /v1 is added to a URL without a path
  std::string model;        // if empty, the first model that the server lists
  std::string api_key;      // sent as a bearer token unless empty
  std::string api_key_env;  // the environment variable that held the key, for messages
  nlohmann::ordered_json chat_template_kwargs;  // sent with chats (vLLM) unless null
  int64_t concurrency = 32;                     // maximum number of requests in flight
  double timeout_s = 1800;                      // time limit of one attempt
  int64_t max_retries = 6;                      // retries of one request
  // The pause before the first retry. Each further pause is twice as long, up to 30 s. If the
  // server sends Retry-After, the pause is at least that long, up to 60 s.
  double first_pause_s = 0.5;
};

struct OpenAiUrl {
  std::string host;    // scheme://host:port
  std::string prefix;  // the path before /completions
};
// Returns INVALID_ARGUMENT if `text` is not an http or https URL, or has a query or a fragment.
absl::StatusOr<OpenAiUrl> ParseOpenAiUrl(const std::string& text);

// Thread-safe, but each thread needs a connection of its own.
class OpenAiClient {
 public:
  // The pauses use `clock`, which must outlive the client.
  OpenAiClient(const OpenAiOptions& options, OpenAiUrl url, Clock* clock);
  ~OpenAiClient();

  const std::string& host() const { return url_.host; }
  // Returns the address of a path, for messages.
  std::string AddressOf(const std::string& path) const { return url_.host + url_.prefix + path; }

  // Opens a connection with a time limit for each attempt. The connection must not outlive the
  // client. One thread may use it at a time.
  std::unique_ptr<httplib::Client> Open(double timeout_s) const;

  // Sends a request and returns the JSON object of the 200 reply. `path` follows the prefix; an
  // empty `body` is not sent. Errors quote the server's message: UNAVAILABLE after the last retry,
  // PERMISSION_DENIED (401, 403), NOT_FOUND (404), INVALID_ARGUMENT (any other refusal), and
  // RESOURCE_EXHAUSTED or DATA_LOSS for a reply that is too long or not a JSON object.
  absl::StatusOr<nlohmann::ordered_json> Send(httplib::Client* connection,
                                              const std::string& method, const std::string& path,
                                              const std::string& body);

  // Returns the number of retries so far.
  int64_t num_retries() const { return num_retries_; }

  // While this is set, no request is retried, and pauses end early.
  void set_given_up(bool given_up) { given_up_ = given_up; }
  bool given_up() const { return given_up_; }

 private:
  struct Attempt;
  Attempt SendOnce(httplib::Client* connection, const std::string& method, const std::string& path,
                   const std::string& body) const;
  void Pause(absl::Duration duration) const;

  const OpenAiOptions options_;
  const OpenAiUrl url_;
  Clock* const clock_;
  std::atomic<int64_t> num_retries_{0};
  std::atomic<bool> given_up_{false};
};

}  // namespace taopd
