// Splits text into the pieces that BPE works on. A tokenizer.json gives the pattern as a regular
// expression. The supported patterns are recognized by their text and scanned by hand, because a
// general engine is several times slower and cannot be trusted with a pattern from a file. All
// functions are thread-safe.
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

// Returns the pattern whose regular expression has exactly this text, or nullopt if there is none.
std::optional<SplitPattern> SplitPatternFromRegex(std::string_view regex);

// Returns the size of the first piece of the text. The patterns do not look behind, so taking
// pieces off the front splits the whole text. REQUIRES: text is valid UTF-8 and not empty.
size_t FirstPieceBytes(SplitPattern pattern, std::string_view text);

}  // namespace taopd
