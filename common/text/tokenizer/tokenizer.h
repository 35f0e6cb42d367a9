// A Hugging Face tokenizer.json: byte-level BPE. Immutable after loading; any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // tokenizer.json in `model_dir`. NOT_FOUND when there is none; anything that would tokenize
  // differently from HF tokenizers is refused by name.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(const std::string& tokenizer_json);

  // UTF-8 text to ids. Added (special) tokens in the text are recognised, as in HF tokenizers.
  // add_special_tokens runs the post-processor (a BOS, for Llama). Invalid UTF-8 is replaced by
  // U+FFFD.
  virtual std::vector<int32_t> Encode(std::string_view text,
                                      bool add_special_tokens = false) const = 0;
  // Bytes of the normalized text that the vocabulary has no token for: Encode drops them, as HF
  // tokenizers does where there is no unk_token. 0 at once for a vocabulary that has every byte.
  virtual int64_t CountUnknownBytes(std::string_view text) const = 0;
  // Ids outside the vocabulary decode to nothing. Incomplete UTF-8 becomes U+FFFD.
  virtual std::string Decode(const std::vector<int32_t>& ids,
                             bool skip_special_tokens = true) const = 0;
  // The bytes one id stands for, e.g. for streaming: append until they are valid UTF-8.
  virtual std::string TokenBytes(int32_t id) const = 0;
  // The token as the vocabulary spells it; empty for unknown ids.
  virtual std::string IdToToken(int32_t id) const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  // Largest id + 1.
  virtual int64_t vocab_size() const = 0;
  // SHA-256 (hex) over vocabulary, merges and added tokens: equal for files that differ in layout
  // only.
  virtual const std::string& hash() const = 0;
};

}  // namespace taopd
