// What a generated text must look like: a JSON schema, a regular expression, a grammar. Plain data
// that a client has sent, and the limits that hold before anything else looks at it.
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
  bool any_whitespace = true;  // between the tokens of JSON, of kJsonSchema

  bool operator==(const GrammarSpec&) const = default;
};

// The limits of a spec. What passes them may still be refused by the compiler.
inline constexpr size_t kMaxGrammarBytes = 128 << 10;
inline constexpr size_t kMaxRegexBytes = 16 << 10;
inline constexpr int kMaxGrammarNesting = 64;        // of brackets; vLLM's limit of schemas
inline constexpr int kMaxStructuralTagNesting = 80;  // vLLM's, too

// Returns INVALID_ARGUMENT if the text is empty, too long, nested too deeply or holds a NUL, or if
// a schema or a structural tag is no JSON. Messages begin with `field`.
absl::Status CheckGrammarSpec(const GrammarSpec& spec, const std::string& field);

// A grammar whose texts are JSON objects.
GrammarSpec GrammarOfAnyObject();

// A grammar whose texts are the choices and nothing else. REQUIRES: there are choices.
GrammarSpec GrammarOfChoices(const std::vector<std::string>& choices);

// A grammar in EBNF, or in Lark's notation if the text looks like that, as vLLM decides it: no line
// of Lark's has "::=".
GrammarSpec GrammarOfText(std::string text);

}  // namespace taopd
