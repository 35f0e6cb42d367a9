// The tokenizer that a Hugging Face tokenizer.json describes; only byte-level BPE is supported.
// Immutable and thread-safe.
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

  // Reads tokenizer.json in `model_dir`. Returns NOT_FOUND if there is none. Refuses by name
  // anything in the file that would make the result differ from HF tokenizers. Errors name the
  // path.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  // Reads the text of such a file; `source` names it in messages.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(
      const std::string& tokenizer_json, const std::string& source = "tokenizer.json");

  // Encodes text. Recognizes added (special) tokens in the text, as HF tokenizers does.
  // add_special_tokens runs the post-processor, which adds a BOS for Llama. Invalid UTF-8 is
  // replaced by U+FFFD.
  virtual std::vector<int32_t> Encode(std::string_view text,
                                      bool add_special_tokens = false) const = 0;
  // Returns the number of bytes of the normalized text for which the vocabulary has no token.
  // Encode drops them, as HF tokenizers does if there is no unk_token. Returns 0 immediately if the
  // vocabulary has every byte.
  virtual int64_t CountUnknownBytes(std::string_view text) const = 0;
  // Decodes ids. Ids outside the vocabulary decode to nothing, and incomplete UTF-8 becomes U+FFFD.
  virtual std::string Decode(const std::vector<int32_t>& ids,
                             bool skip_special_tokens = true) const = 0;
  // Returns the bytes of one id, which need not be whole characters (see IncrementalDecoder).
  virtual std::string TokenBytes(int32_t id) const = 0;
  // Returns the token as the vocabulary spells it, or an empty string for an unknown id.
  virtual std::string IdToToken(int32_t id) const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  // Returns the largest id plus 1.
  virtual int64_t vocab_size() const = 0;
  // Returns the SHA-256 (hexadecimal) over vocabulary, merges and added tokens. Files that differ
  // only in their layout have equal hashes.
  virtual const std::string& hash() const = 0;
};

}  // namespace taopd
