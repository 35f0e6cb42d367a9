// Tokens as JSON texts. Each id is decoded once per answer. Without a tokenizer a token has no
// text, and its name is "token_id:<id>". Not thread-safe: make one for each answer.
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

  // Returns the text of the id. If it is only a part of a character, up to four tokens of
  // `context`, which stand before the id, complete it; the text is empty if it stays incomplete.
  std::string Decode(int32_t id, std::span<const int32_t> context);
  // Returns the "decoded_token" of prompt_logprobs: a JSON string, or null without a tokenizer.
  std::string DecodedTokenJson(int32_t id, std::span<const int32_t> context);
  // Returns the token in the `logprobs` object: its text, or "token_id:<id>".
  std::string Name(int32_t id, std::span<const int32_t> context);
  // Does the same for a token without a context: a part of a character is U+FFFD.
  std::string NameAlone(int32_t id);

 private:
  const Tokenizer* const tokenizer_;
  const bool as_token_ids_;
  std::unordered_map<int32_t, std::string> whole_;  // decoded texts that need no context
};

// Appends a JSON list of `size` parts. `append(i)` appends part i.
template <typename Append>
void AppendList(size_t size, std::string* out, const Append& append) {
  *out += '[';
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) *out += ',';
    append(i);
  }
  *out += ']';
}
// Appends a float, widened to double and printed as Python does, so that it reads back as the same
// float. -inf becomes kVllmLogOfZero. REQUIRES: neither NaN nor +inf.
void AppendLogprob(float value, std::string* out);

}  // namespace taopd
