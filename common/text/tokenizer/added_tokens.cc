#include "common/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "common/text/unicode/unicode.h"

namespace taopd {
namespace {

uint64_t ChildKey(int32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

bool StartsWithWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(FirstCodePoint(text));
}

bool EndsWithWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(LastCodePoint(text));
}

// Returns where the white space at the end of the text begins. Does not search before `limit`.
size_t TrailingSpaceBegin(std::string_view text, size_t limit) {
  size_t size_bytes;
  while (text.size() > limit && IsWhiteSpace(LastCodePoint(text, &size_bytes))) {
    text.remove_suffix(size_bytes);
  }
  return text.size();
}

size_t LeadingSpaceBytes(std::string_view text) {
  size_t position = 0, size_bytes;
  while (position < text.size() &&
         IsWhiteSpace(FirstCodePoint(text.substr(position), &size_bytes))) {
    position += size_bytes;
  }
  return position;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t t = 0; t < tokens_.size(); ++t) {
    int32_t node = 0;
    for (const char byte : tokens_[t].content) {
      const auto [child, is_new] =
          children_.try_emplace(ChildKey(node, byte), static_cast<int32_t>(token_at_node_.size()));
      if (is_new) token_at_node_.push_back(-1);
      node = child->second;
    }
    token_at_node_[node] = static_cast<int32_t>(t);
    is_first_byte_[static_cast<uint8_t>(tokens_[t].content[0])] = true;
  }
  if (std::count(is_first_byte_.begin(), is_first_byte_.end(), true) == 1) {
    only_first_byte_ = static_cast<uint8_t>(tokens_[0].content[0]);
  }
}

AddedTokenMatcher::Match AddedTokenMatcher::FindFrom(std::string_view text, size_t position) const {
  if (tokens_.empty()) return {text.size(), text.size(), nullptr};
  for (size_t begin = position; begin < text.size(); ++begin) {
    if (only_first_byte_ >= 0) {
      begin = text.find(static_cast<char>(only_first_byte_), begin);
      if (begin == std::string_view::npos) break;
    } else if (!is_first_byte_[static_cast<uint8_t>(text[begin])]) {
      continue;
    }
    Match longest = {begin, begin, nullptr};
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto child = children_.find(ChildKey(node, text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_at_node_[node] >= 0) longest = {begin, i + 1, &tokens_[token_at_node_[node]]};
    }
    if (longest.token != nullptr) return longest;
  }
  return {text.size(), text.size(), nullptr};
}

void AddedTokenMatcher::Split(
    std::string_view text,
    const std::function<void(int32_t id, std::string_view piece)>& piece) const {
  size_t done = 0;  // end of the pieces that have been reported
  for (Match match = FindFrom(text, 0); match.token != nullptr; match = FindFrom(text, match.end)) {
    const AddedToken& token = *match.token;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, match.begin)) || StartsWithWord(text.substr(match.end)))) {
      continue;
    }
    size_t begin = match.begin, end = match.end;
    if (token.lstrip) begin = std::max(TrailingSpaceBegin(text.substr(0, begin), done), done);
    if (token.rstrip) end += LeadingSpaceBytes(text.substr(end));
    if (done < begin) piece(-1, text.substr(done, begin - done));
    piece(token.id, text.substr(begin, end - begin));
    // The search continues after the match itself, so white space consumed by rstrip can be the
    // start of the next match; HF tokenizers does the same.
    done = end;
  }
  if (done < text.size()) piece(-1, text.substr(done));
}

}  // namespace taopd
