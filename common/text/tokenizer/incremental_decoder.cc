#include "common/text/tokenizer/incremental_decoder.h"

#include <utility>

#include "common/text/unicode/unicode.h"

namespace taopd {

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
