// Finds added tokens in text as HF tokenizers does: the leftmost match wins, and of several matches
// at one place the longest; then the options single_word, lstrip and rstrip apply.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      // omitted by Decode on request
  bool single_word = false;  // matches only if no word character is next to it
  bool lstrip = false;       // also consumes the white space before it
  bool rstrip = false;       // also consumes the white space after it
  bool normalized = false;   // matched in the normalized text, not in the original
};

// Immutable and thread-safe.
class AddedTokenMatcher {
 public:
  // The tokens' contents are the patterns. REQUIRES: none is empty and no two are equal.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Calls `piece` for each piece of the text from left to right: with the id of an added token, or
  // with -1 for the text between two of them, which is never empty.
  void Split(std::string_view text,
             const std::function<void(int32_t id, std::string_view piece)>& piece) const;

 private:
  struct Match {
    size_t begin, end;
    const AddedToken* token;  // null if nothing matches
  };
  Match FindFrom(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;
  // A trie over bytes: children by (node, byte), and the token that ends at each node, or -1.
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::vector<int32_t> token_at_node_ = {-1};
  std::array<bool, 256> is_first_byte_{};
  // The first byte that all tokens share (usually '<'), or -1 if they do not share one.
  int only_first_byte_ = -1;
};

}  // namespace taopd
