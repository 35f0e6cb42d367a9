// Finding added tokens in text, as HF tokenizers does: leftmost first, of those the longest; then
// the options single_word, lstrip and rstrip. Immutable; any thread.
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
  bool special = false;      // left out by Decode on request
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in the normalized text, not in the original
};

class AddedTokenMatcher {
 public:
  // The tokens' contents are the patterns: not empty, no two equal.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Calls back for the pieces of the text from left to right: `id` of an added token, or -1 and the
  // text between. No piece of text is empty.
  void Split(std::string_view text,
             const std::function<void(int32_t id, std::string_view piece)>& piece) const;

 private:
  struct Match {
    size_t begin, end;
    const AddedToken* token;  // null: no match
  };
  Match FindFrom(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;
  // A trie over bytes: children by (node, byte), and the token that ends at a node or -1.
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::vector<int32_t> token_at_node_ = {-1};
  std::array<bool, 256> is_first_byte_{};
  // The first byte of all tokens where it is one and the same ('<', mostly); -1 otherwise.
  int only_first_byte_ = -1;
};

}  // namespace taopd
