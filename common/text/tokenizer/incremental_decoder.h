// Ids to text one at a time, for streaming: a character's bytes can be spread over several tokens,
// so the bytes of an incomplete one are held back. The pieces together are Tokenizer::Decode's
// text.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

// Bytes at the end of the text that begin a UTF-8 character and do not complete it: 0 to 3.
size_t IncompleteSuffixBytes(std::string_view text);

// One thread. `tokenizer` must outlive it.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens = true)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // What is certain after one more id: whole characters, U+FFFD for bytes that can be none.
  std::string Push(int32_t id);
  // The end: U+FFFD for bytes held back.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string held_back_;
};

}  // namespace taopd
