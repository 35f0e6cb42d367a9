// The form that a generated text must have: a JSON schema, a regular expression or a grammar. It is
// plain data from a client, with the limits that are checked before anything else reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct GrammarSpec {
  enum class Kind : uint8_t {
    kJsonSchema,     // `text` is a JSON schema
    kRegex,          // a regular expression that the whole text matches
    kEbnf,           // a grammar in xgrammar's EBNF, whose rule "root" is the text
    kLark,           // a grammar in the notation of the Lark parser
    kStructuralTag,  // xgrammar's structural tag, as JSON
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  bool any_whitespace = true;  // kJsonSchema: allows any white space between JSON's tokens

  bool operator==(const GrammarSpec&) const = default;
};

// The limits of a spec. The compiler may still refuse a spec that is within them.
inline constexpr size_t kMaxGrammarBytes = 128 << 10;
inline constexpr size_t kMaxRegexBytes = 16 << 10;
inline constexpr int kMaxGrammarNesting = 64;        // levels of brackets, as vLLM's for schemas
inline constexpr int kMaxStructuralTagNesting = 80;  // vLLM's limit

// Returns INVALID_ARGUMENT if the text is empty, too long, nested too deeply or holds a NUL, or if
// a schema or a structural tag is not JSON. Messages begin with `field`.
absl::Status CheckGrammarSpec(const GrammarSpec& spec, const std::string& field);

// Converts xgrammar's older form of a structural tag, {"structures": [{"begin", "schema", "end"}],
// "triggers": [..]}, into the current one. Returns other texts of JSON unchanged.
std::string CurrentStructuralTag(const std::string& text);

// Returns a grammar of all JSON objects.
GrammarSpec GrammarOfAnyObject();

// Returns a grammar of exactly these texts. REQUIRES: choices is not empty.
GrammarSpec GrammarOfChoices(const std::vector<std::string>& choices);

// Reads the text as EBNF if a line has "::=", and otherwise as Lark's notation, as vLLM does.
GrammarSpec GrammarOfText(std::string text);

}  // namespace taopd
