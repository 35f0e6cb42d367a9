// The text of one completion: decodes its tokens, finds the stop string that ends it, and cuts the
// text where vLLM does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/engine/engine.h"
#include "common/text/stop_strings.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "server/http/completion_request.h"

namespace taopd {

// The text so far. Not thread-safe.
class GeneratedText {
 public:
  // `tokenizer` must outlive the object.
  GeneratedText(const Tokenizer* tokenizer, const CompletionRequest& request);

  // Appends a token. Returns true if a stop string of the request is complete now; the text then
  // ends with it or before it. One that ends within the first min_tokens tokens does not count.
  // REQUIRES: Push has not returned true.
  bool Push(int32_t id);
  // Makes bytes that complete no character a part of the text, as U+FFFD.
  void Finish();

  const std::string& text() const { return matcher_.text(); }
  // The index of the request's stop string that is complete, if one is.
  std::optional<size_t> stop_string() const { return matcher_.matched(); }

 private:
  IncrementalDecoder decoder_;
  StopStringMatcher matcher_;
  const int64_t min_tokens_;
  int64_t num_tokens_ = 0;
};

// The text of all generated tokens. A stop token is no part of it, unless
// include_stop_str_in_output is true.
GeneratedText FinishedText(const GeneratedTokens& generated, const Tokenizer* tokenizer,
                           const CompletionRequest& request);

// Whether the sequence has ended with one of the request's stop_token_ids.
bool EndsWithStopToken(const GeneratedTokens& generated, const CompletionRequest& request);

}  // namespace taopd
