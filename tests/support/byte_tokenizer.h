#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"

namespace taopd::testing {

// A Tokenizer whose ids are the bytes of the text.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(1);
    for (unsigned char c : text) ids.push_back(c);
    return ids;
  }
  int64_t CountUnknownBytes(std::string_view) const override { return 0; }
  std::string Decode(const std::vector<int32_t>& ids, bool) const override {
    return {ids.begin(), ids.end()};
  }
  std::string TokenBytes(int32_t id) const override {
    return std::string(1, static_cast<char>(id));
  }
  std::string IdToToken(int32_t id) const override { return TokenBytes(id); }
  std::optional<int32_t> TokenToId(std::string_view token) const override { return token[0]; }
  int64_t vocab_size() const override { return 256; }
  const std::string& hash() const override { return hash_; }

 private:
  std::string hash_ = "bytes";
};

}  // namespace taopd::testing
