#include "common/text/tokenizer/incremental_decoder.h"

#include <unicode/utf8.h>

#include <utility>

#include "common/text/unicode/unicode.h"

namespace taopd {

size_t IncompleteSuffixBytes(std::string_view text) {
  for (size_t size = 1; size <= 3 && size <= text.size(); ++size) {
    const std::string_view suffix = text.substr(text.size() - size);
    const auto lead = static_cast<uint8_t>(suffix[0]);
    if (U8_IS_TRAIL(lead)) continue;
    // A suffix is incomplete if more bytes would make it one character. By the rule that a maximal
    // part is replaced, it becomes one U+FFFD.
    const size_t length =
        U8_IS_LEAD(lead) ? 1 + static_cast<size_t>(U8_COUNT_TRAIL_BYTES(lead)) : 1;
    if (size >= length) return 0;
    constexpr size_t kReplacementBytes = 3;
    return RepairUtf8(suffix).size() == kReplacementBytes ? size : 0;
  }
  return 0;
}

std::string IncrementalDecoder::Push(int32_t id) {
  // A part of a character also decodes to something: U+FFFD.
  if (skip_special_tokens_ && tokenizer_->Decode({id}, true).empty()) return "";
  held_back_ += tokenizer_->TokenBytes(id);
  const size_t size = held_back_.size() - IncompleteSuffixBytes(held_back_);
  std::string text = RepairUtf8(std::string_view(held_back_).substr(0, size));
  held_back_.erase(0, size);
  return text;
}

std::string IncrementalDecoder::Finish() { return RepairUtf8(std::exchange(held_back_, "")); }

}  // namespace taopd
