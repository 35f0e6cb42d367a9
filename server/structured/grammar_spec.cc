#include "server/structured/grammar_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

// Estimates the depth of the deepest bracket, without recursion. It does not count brackets inside
// JSON strings and, outside JSON, brackets after a backslash. Brackets in the literals of other
// grammars may hide depth; taopd-grammar has limits of its own (limits.h).
int Nesting(std::string_view text, bool is_json) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
    } else if (is_json && c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      continue;
    } else if (c == '{' || c == '[' || c == '(') {
      most = std::max(most, ++depth);
    } else if (c == '}' || c == ']' || c == ')') {
      depth = std::max(0, depth - 1);
    }
  }
  return most;
}

// Returns whether a line has "::=" outside comments.
bool DefinesEbnfRule(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    line = line.substr(0, std::min(line.find('#'), line.find("//")));
    if (line.find("::=") != std::string_view::npos) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

// Returns the text as a terminal of EBNF.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        out += '\\';
        out += c;
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr char kDigits[] = "0123456789abcdef";
          out += std::string("\\u00") + kDigits[c / 16] + kDigits[c % 16];
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

}  // namespace

absl::Status CheckGrammarSpec(const GrammarSpec& spec, const std::string& field) {
  using Kind = GrammarSpec::Kind;
  const std::string_view text = spec.text;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return InvalidArgument(field, " cannot be empty");
  const size_t max_bytes = spec.kind == Kind::kRegex ? kMaxRegexBytes : kMaxGrammarBytes;
  if (text.size() > max_bytes)
    return InvalidArgument(field, " has ", text.size(), " bytes, the limit is ", max_bytes);
  if (text.find('\0') != std::string_view::npos)
    return InvalidArgument(field, " must not contain a NUL character ('\\x00')");
  const bool is_json = spec.kind == Kind::kJsonSchema || spec.kind == Kind::kStructuralTag;
  const int max_nesting =
      spec.kind == Kind::kStructuralTag ? kMaxStructuralTagNesting : kMaxGrammarNesting;
  if (Nesting(text, is_json) > max_nesting) {
    return InvalidArgument(field, " is nested too deeply: brackets may nest at most ", max_nesting,
                           " levels");
  }
  if (is_json && !nlohmann::json::accept(text)) return InvalidArgument(field, " is not valid JSON");
  if (spec.kind == Kind::kStructuralTag && text[text.find_first_not_of(" \t\r\n")] != '{')
    return InvalidArgument(field, " must be an object");
  return absl::OkStatus();
}

std::string CurrentStructuralTag(const std::string& text) {
  using nlohmann::ordered_json;
  if (text.find("\"structures\"") == std::string::npos) return text;
  const auto tag = ParseOrderedJson(text, "structural_tag");
  if (!tag.ok()) return text;
  const auto structures = tag->find("structures");
  const auto triggers = tag->find("triggers");
  if (structures == tag->end() || triggers == tag->end() || !structures->is_array()) return text;
  ordered_json tags = ordered_json::array();
  for (const ordered_json& item : *structures) {
    if (!item.is_object()) return text;
    tags.push_back(
        {{"type", "tag"},
         {"begin", item.value("begin", ordered_json())},
         {"content",
          {{"type", "json_schema"}, {"json_schema", item.value("schema", ordered_json())}}},
         {"end", item.value("end", ordered_json())}});
  }
  const ordered_json current = {
      {"type", "structural_tag"},
      {"format", {{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", tags}}}};
  return current.dump();
}

GrammarSpec GrammarOfAnyObject() {
  return {GrammarSpec::Kind::kJsonSchema, R"({"type": "object"})"};
}

GrammarSpec GrammarOfChoices(const std::vector<std::string>& choices) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kEbnf;
  spec.text = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) spec.text += " | ";
    spec.text += Quoted(choices[i]);
  }
  return spec;
}

GrammarSpec GrammarOfText(std::string text) {
  const bool is_ebnf = DefinesEbnfRule(text);
  return {is_ebnf ? GrammarSpec::Kind::kEbnf : GrammarSpec::Kind::kLark, std::move(text)};
}

}  // namespace taopd
