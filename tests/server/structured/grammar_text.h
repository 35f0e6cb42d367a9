// Texts under a grammar, token by token, with a small vocabulary: every byte, as in tokenizers that
// fall back to bytes, some tokens of several bytes, of which some end or begin within a character,
// and special ids.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/structured/grammar_compiler.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

inline constexpr int32_t kSpecialId = 0;
inline constexpr int32_t kEosId = 1;

inline std::vector<std::string> SmallVocabulary() {
  std::vector<std::string> bytes(2);
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text :
       {"{\"", "\":", "true", "ab", "abc", "ye", "s\n", "10", "\xC3\xA9", "},", "],", "\xE6\x97",
        "\xA5\xE6\x9C\xAC", "\xE6\x97\xA5", "\xF0\x9F", "\x98\x80", "\"\xC3"})
    bytes.push_back(text);
  bytes.emplace_back();  // an id beyond the tokenizer's
  return bytes;
}

inline GrammarCompilerOptions TestOptions() {
  GrammarCompilerOptions options;
  options.host.program = BinaryPath("taopd-grammar");
  return options;
}

inline std::unique_ptr<GrammarCompiler> NewCompiler(
    GrammarCompilerOptions options = TestOptions()) {
  return std::make_unique<GrammarCompiler>(SmallVocabulary(), std::vector<int32_t>{kEosId},
                                           std::move(options));
}

inline absl::StatusOr<std::shared_ptr<Grammar>> CompileWith(GrammarCompiler& compiler,
                                                            GrammarSpec::Kind kind,
                                                            const std::string& text,
                                                            const std::string& client = "c") {
  return compiler.Compile(
      {.spec = {.kind = kind, .text = text}, .field = "field", .client = client});
}

// The ids that may follow `ids`.
inline absl::StatusOr<std::set<int32_t>> AllowedIds(LogitMask& mask,
                                                    const std::vector<int32_t>& ids) {
  static const auto vocab_size = static_cast<int32_t>(SmallVocabulary().size());
  std::vector<uint64_t> bits((vocab_size + 63) / 64, ~uint64_t{0});
  TAOPD_ASSIGN_OR_RETURN(const bool restricts, mask.Mask(ids, bits));
  std::set<int32_t> allowed;
  for (int32_t v = 0; v < vocab_size; ++v) {
    if (!restricts || (bits[v / 64] >> (v % 64) & 1) != 0) allowed.insert(v);
  }
  return allowed;
}

// Expects that this works, and returns its result; empty otherwise.
inline std::set<int32_t> Allowed(LogitMask& mask, const std::vector<int32_t>& ids) {
  const auto allowed = AllowedIds(mask, ids);
  EXPECT_OK(allowed);
  return allowed.value_or(std::set<int32_t>());
}

inline std::string TextOf(const std::vector<int32_t>& ids) {
  static const std::vector<std::string> bytes = SmallVocabulary();
  std::string text;
  for (const int32_t id : ids) text += bytes[id];
  return text;
}

}  // namespace taopd::testing
