// Responses of a server that speaks OpenAI's API: vLLM, SGLang, or this project's taopd-teacher.
//
// A chat goes to POST /chat/completions as messages (the server's chat template renders it), text
// and token ids go to POST /completions. One request is one response. Failures that may pass (no
// connection, a timeout, 408, 429, 5xx) are tried again with growing pauses; the others end the
// evaluation with the server's own words.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/eval/response_source.h"

namespace taopd {

struct OpenAiOptions {
  std::string url;          // http://host:port or https://host/prefix; without a path: /v1
  std::string model;        // empty: the first that the server lists
  std::string api_key;      // sent as a bearer token; empty: none
  std::string api_key_env;  // the variable that it came from, for messages
  nlohmann::ordered_json chat_template_kwargs;  // sent with chats (vLLM); null: not sent
  int64_t concurrency = 32;                     // requests in flight
  double timeout_s = 1800;                      // for one attempt
  int64_t max_retries = 6;
  double first_pause_s =
      0.5;  // doubles with each retry, at most 30 s; Retry-After is obeyed to 60 s
};

class OpenAiSource : public ResponseSource {
 public:
  // INVALID_ARGUMENT for a URL that is none. Asks GET /models for the name of the model when none
  // is given, or else whether the server knows it: UNAVAILABLE, PERMISSION_DENIED, NOT_FOUND with
  // what the server has.
  static absl::StatusOr<std::unique_ptr<OpenAiSource>> Connect(const OpenAiOptions& options);
  virtual const std::string& model() const = 0;
  // Attempts that were repeated so far.
  virtual int64_t num_retries() const = 0;
};

}  // namespace taopd
