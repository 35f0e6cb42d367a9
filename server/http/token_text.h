// Tokens as JSON texts, with each id decoded once per answer. Without a tokenizer a token has no
// text; its name is then "token_id:<id>". For one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

class TokenText {
 public:
  // `tokenizer` may be null.
  TokenText(const Tokenizer* tokenizer, bool as_token_ids)
      : tokenizer_(tokenizer), as_token_ids_(as_token_ids) {}

  // A part of a character is completed with up to four tokens of `context` (those before the id);
  // text that stays incomplete is empty.
  std::string Decode(int32_t id, std::span<const int32_t> context);
  // "decoded_token" of prompt_logprobs: JSON text, or null without a tokenizer.
  std::string DecodedTokenJson(int32_t id, std::span<const int32_t> context);
  // The token in the `logprobs` object: its text, or "token_id:<id>".
  std::string Name(int32_t id, std::span<const int32_t> context);

 private:
  const Tokenizer* const tokenizer_;
  const bool as_token_ids_;
  std::unordered_map<int32_t, std::string> whole_;  // decoded texts that need no context
};

// Appends a JSON string; bytes that are no UTF-8 become U+FFFD.
void AppendJsonString(const std::string& text, std::string* out);
// Appends a float so that it reads back as the same float, widened to double as Python prints it:
// -inf becomes -9999.0 (vLLM's value), +inf and NaN are the caller's error.
void AppendLogprob(float value, std::string* out);
// Code points of UTF-8 text.
int64_t NumCodePoints(const std::string& text);

}  // namespace taopd
