// Responses of a server that speaks OpenAI's API: vLLM, SGLang, or this project's taopd-teacher.
//
// A chat is sent to POST /chat/completions as messages, which the server's chat template renders.
// Text and token ids are sent to POST /completions. One request is one response. Failures that may
// pass are tried again (openai_client.h); any other one ends the evaluation with the server's own
// words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "trainer/eval/openai_client.h"
#include "trainer/eval/response_source.h"

namespace taopd {

class OpenAiSource : public ResponseSource {
 public:
  // Asks GET /models whether the server knows options.model, or for its first model if none is
  // named. A server without that listing is accepted if a model is named. Returns INVALID_ARGUMENT
  // for a malformed URL, UNAVAILABLE or PERMISSION_DENIED with the server's words, and NOT_FOUND
  // with the models that the server has. `clock` outlives the source.
  static absl::StatusOr<std::unique_ptr<OpenAiSource>> Connect(const OpenAiOptions& options,
                                                               Clock* clock = Clock::Real());
  virtual const std::string& model() const = 0;
  // Attempts that were repeated so far.
  virtual int64_t num_retries() const = 0;
};

}  // namespace taopd
