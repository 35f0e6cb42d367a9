// Decodes ids to text one at a time, for streaming. A character's bytes can be spread over several
// tokens, so the bytes of an incomplete character are held back. The pieces together are the text
// of Tokenizer::Decode.
#pragma once

#include <string>

#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

// Not thread-safe. `tokenizer` must outlive it.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens = true)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Returns the text that becomes certain with one more id: whole characters, and U+FFFD for bytes
  // that cannot become part of one.
  std::string Push(int32_t id);
  // Returns the text that becomes certain at the end: U+FFFD if bytes were held back.
  std::string Finish();
  // Returns whether the bytes of an incomplete character are held back.
  bool is_holding() const { return !held_back_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string held_back_;
};

}  // namespace taopd
