// Generates responses with a server that speaks OpenAI's API: vLLM, SGLang, or taopd-teacher.
//
// A chat is sent to POST /chat/completions as messages, which the server's chat template renders.
// Text and token ids are sent to POST /completions. Each request yields one response. Transient
// failures are retried (openai_client.h); any other failure ends the evaluation with the server's
// message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "trainer/eval/openai/openai_client.h"
#include "trainer/eval/response_source.h"

namespace taopd {

class OpenAiSource : public ResponseSource {
 public:
  // Chooses the model (OpenAiClient::ChooseModel). Returns INVALID_ARGUMENT for a malformed URL,
  // UNAVAILABLE or PERMISSION_DENIED with the server's message, and NOT_FOUND with the list of the
  // server's models. `clock` must outlive the source.
  static absl::StatusOr<std::unique_ptr<OpenAiSource>> Connect(const OpenAiOptions& options,
                                                               Clock* clock = Clock::Real());
  virtual const std::string& model() const = 0;
  // Returns the number of retries so far.
  virtual int64_t num_retries() const = 0;
};

}  // namespace taopd
