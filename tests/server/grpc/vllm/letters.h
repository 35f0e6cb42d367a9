// Tokens that are one letter each, for tests of what a constraint lets through.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/structured/grammar_compiler.h"
#include "tests/server/fake_engine.h"
#include "tests/support/files.h"

namespace taopd::testing {

// Token v is the letter v; token 0 ends a text.
inline constexpr char kLetters[] = "$123456789abcdefghijklmnopqr\"{}:";
static_assert(sizeof(kLetters) == kFakeVocab + 1);

inline std::unique_ptr<GrammarCompiler> LettersCompiler() {
  std::vector<std::string> token_bytes(kFakeVocab);
  for (int v = 1; v < kFakeVocab; ++v) token_bytes[v] = std::string(1, kLetters[v]);
  GrammarCompilerOptions options;
  options.host.program = BinaryPath("taopd-grammar");
  return std::make_unique<GrammarCompiler>(token_bytes, std::vector<int32_t>{0}, options);
}

// The letters that may follow `text`, in the order of kLetters; "$" stands for its end.
inline absl::StatusOr<std::string> LettersBehind(const std::string& text, LogitMask& mask) {
  std::vector<int32_t> ids;
  for (const char letter : text)
    ids.push_back(static_cast<int32_t>(std::string(kLetters).find(letter)));
  std::vector<uint64_t> bits = {~uint64_t{0}};
  TAOPD_ASSIGN_OR_RETURN(const bool restricts, mask.Mask(ids, bits));
  if (!restricts) return std::string(kLetters);
  std::string letters;
  for (int v = 0; v < kFakeVocab; ++v) {
    if ((bits[0] >> v & 1) != 0) letters += kLetters[v];
  }
  return letters;
}

}  // namespace taopd::testing
