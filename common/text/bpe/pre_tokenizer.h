// Splitting text into the pieces that BPE works on. The patterns are regular expressions in
// tokenizer.json; those known here are recognised by their text and scanned by hand (a general
// engine is several times slower, and a pattern from a file is not to be trusted with one).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace taopd {

enum class SplitPattern {
  kGpt2,    // GPT-2; also what ByteLevel uses by itself
  kQwen2,   // Qwen2, Qwen2.5, Qwen3: digits one by one
  kLlama3,  // Llama 3: digits in groups of up to three
};

// The pattern whose regular expression has exactly this text.
std::optional<SplitPattern> SplitPatternFromRegex(std::string_view regex);

// Bytes of the piece that starts the text. The patterns do not look behind, so splitting is taking
// pieces off the front. REQUIRES: text is valid UTF-8 and not empty.
size_t FirstPieceBytes(SplitPattern pattern, std::string_view text);

}  // namespace taopd
