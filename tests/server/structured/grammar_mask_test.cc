// The masks of every kind of spec against lists of all their texts, which are written by hand.
#include <gmock/gmock.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/server/structured/grammar_text.h"

namespace taopd::testing {
namespace {

using ::testing::UnorderedElementsAreArray;
using Kind = GrammarSpec::Kind;

// Returns the ids that may follow `prefix` if there are only these texts.
std::set<int32_t> Expected(const std::vector<std::string>& texts, const std::string& prefix) {
  const std::vector<std::string> bytes = SmallVocabulary();
  std::set<int32_t> allowed;
  for (const std::string& text : texts) {
    if (text == prefix) allowed.insert(kEosId);
    for (size_t v = 0; v < bytes.size(); ++v) {
      if (!bytes[v].empty() && text.starts_with(prefix + bytes[v]))
        allowed.insert(static_cast<int32_t>(v));
    }
  }
  return allowed;
}

// Follows every way of tokenizing every text.
void ExpectTexts(const std::shared_ptr<Grammar>& grammar, const std::vector<std::string>& texts) {
  std::deque<std::vector<int32_t>> open = {{}};
  std::set<std::string> ended;
  while (!open.empty()) {
    const std::vector<int32_t> ids = open.front();
    open.pop_front();
    const auto mask = Grammar::NewMask(grammar, {});
    ASSERT_OK_AND_ASSIGN(const std::set<int32_t> allowed, AllowedIds(*mask, ids));
    ASSERT_THAT(allowed, UnorderedElementsAreArray(Expected(texts, TextOf(ids)))) << TextOf(ids);
    for (const int32_t id : allowed) {
      if (id == kEosId) {
        ended.insert(TextOf(ids));
        continue;
      }
      open.push_back(ids);
      open.back().push_back(id);
    }
  }
  EXPECT_THAT(ended, UnorderedElementsAreArray(texts));
}

struct FiniteCase {
  GrammarSpec spec;
  std::vector<std::string> texts;
};

void ExpectTextsOf(const std::vector<FiniteCase>& cases) {
  const auto compiler = NewCompiler();
  for (const FiniteCase& c : cases) {
    SCOPED_TRACE(c.spec.text);
    ASSERT_OK_AND_ASSIGN(const auto grammar, compiler->Compile({.spec = c.spec, .field = "f"}));
    ExpectTexts(grammar, c.texts);
  }
}

TEST(GrammarMaskTest, AllowsExactlyWhatContinuesSomeText) {
  const std::vector<std::string> choices = {"yes\n", "no",       "nope", "\"q\\", "\xC3\xA9",
                                            "ab",    "a\tb\x01", "yet",  "abc"};
  ExpectTextsOf({
      {GrammarOfChoices(choices), choices},
      {{.kind = Kind::kRegex, .text = "(ab|a)c?[01]{1,2}"},
       {"ab0",   "ab1",   "ab00",  "ab01",  "ab10", "ab11", "abc0", "abc1",
        "abc00", "abc01", "abc10", "abc11", "a0",   "a1",   "a00",  "a01",
        "a10",   "a11",   "ac0",   "ac1",   "ac00", "ac01", "ac10", "ac11"}},
      {{.kind = Kind::kJsonSchema, .text = R"({"enum": ["ab", true, 10, null]})"},
       {"\"ab\"", "true", "10", "null"}},
      {{.kind = Kind::kEbnf,
        .text = "root ::= \"a\" list? | \"c\"\nlist ::= \"b\" (\"c\" | \"10\")"},
       {"a", "abc", "ab10", "c"}},
      {{.kind = Kind::kLark, .text = "start: \"ab\" (\"c\" | \"true\")"}, {"abc", "abtrue"}},
      {{.kind = Kind::kStructuralTag,
        .text = R"({"type":"structural_tag","format":{"type":"const_string","value":"abc\n"}})"},
       {"abc\n"}},
  });
  EXPECT_OK(CompileWith(*NewCompiler(), Kind::kStructuralTag,
                        R"({"structures":[{"begin":"<a>","schema":{},"end":"</a>"}],)"
                        R"("triggers":["<a"]})"));
}

// Characters of two, three and four bytes, whole, byte by byte, and in tokens that end within one.
TEST(GrammarMaskTest, CharactersOfSeveralBytesAreFollowedByteByByte) {
  const std::string e = "\xC3\xA9", sun = "\xE6\x97\xA5", book = "\xE6\x9C\xAC",
                    smile = "\xF0\x9F\x98\x80", grin = "\xF0\x9F\x98\x81";
  const std::vector<std::string> choices = {sun + book, sun, e, smile, grin + "a", book + sun};
  ExpectTextsOf({
      {GrammarOfChoices(choices), choices},
      {{.kind = Kind::kRegex, .text = "[" + sun + book + "]{1,2}"},
       {sun, book, sun + sun, sun + book, book + sun, book + book}},
      {{.kind = Kind::kRegex, .text = e + "?" + smile}, {smile, e + smile}},
      // A range that ends in other bytes than it begins: U+00FE to U+0101.
      {{.kind = Kind::kRegex, .text = "[\xC3\xBE-\xC4\x81]"},
       {"\xC3\xBE", "\xC3\xBF", "\xC4\x80", "\xC4\x81"}},
      {{.kind = Kind::kJsonSchema, .text = "{\"enum\": [\"" + sun + book + "\", \"" + e + "\"]}"},
       {"\"" + sun + book + "\"", "\"" + e + "\""}},
      {{.kind = Kind::kEbnf, .text = "root ::= \"" + sun + "\" [" + book + smile + "]"},
       {sun + book, sun + smile}},
      {{.kind = Kind::kLark, .text = "start: \"" + grin + "\" | \"" + smile + "\""}, {grin, smile}},
      {{.kind = Kind::kStructuralTag,
        .text = "{\"type\":\"structural_tag\",\"format\":{\"type\":\"const_string\",\"value\":\"" +
                sun + e + "\"}}"},
       {sun + e}},
  });
}

TEST(GrammarMaskTest, EverythingIsAllowedBehindTheEndAndNothingSpecialBefore) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "[^x]{3}"));
  const auto mask = Grammar::NewMask(grammar, {});
  const std::set<int32_t> first = Allowed(*mask, {});
  EXPECT_FALSE(first.contains(kSpecialId));
  EXPECT_FALSE(first.contains(kEosId));
  EXPECT_FALSE(first.contains(static_cast<int32_t>(SmallVocabulary().size()) - 1));
  EXPECT_TRUE(first.contains(2 + 'a'));
  std::vector<int32_t> ids = {2 + 'a', 2 + 'b', 2 + 'c'};
  EXPECT_EQ(Allowed(*mask, ids), std::set<int32_t>{kEosId});
  for (const int32_t next : {kEosId, 7, 8, 9}) {  // with ignore_eos a text goes on
    ids.push_back(next);
    EXPECT_EQ(Allowed(*mask, ids).size(), SmallVocabulary().size()) << next;
  }
}

TEST(GrammarMaskTest, StopIdsOfARequestEndAText) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "ab"));
  const auto mask = Grammar::NewMask(grammar, {2 + '!'});
  EXPECT_EQ(Allowed(*mask, {2 + 'a', 2 + 'b'}), (std::set<int32_t>{kEosId, 2 + '!'}));
}

// An engine asks again if a step failed, and feeds several tokens at once to a new mask.
TEST(GrammarMaskTest, AnswersTheSameHoweverItIsAsked) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "a*b{2}"));
  const auto mask = Grammar::NewMask(grammar, {}), other = Grammar::NewMask(grammar, {}),
             late = Grammar::NewMask(grammar, {});
  std::vector<int32_t> ids;
  for (const char c : {'a', 'a', 'b', 'b'}) {
    const std::set<int32_t> allowed = Allowed(*mask, ids);
    EXPECT_EQ(allowed, Allowed(*mask, ids));
    EXPECT_EQ(allowed, Allowed(*other, ids));
    EXPECT_TRUE(allowed.contains(2 + c));
    ids.push_back(2 + c);
    mask->Prepare(ids);
  }
  for (const auto& asked : {mask, late}) EXPECT_EQ(Allowed(*asked, ids), std::set<int32_t>{kEosId});
  // A token that the grammar does not allow, be it from a caller's mistake, is an error.
  EXPECT_ERROR(AllowedIds(*Grammar::NewMask(grammar, {}), {2 + 'z'}), kInvalidArgument,
               "does not allow the id");
}

// The value of a JSON text; discarded if it is none. Bytes that are not UTF-8 become U+FFFD, as
// they do in an answer.
nlohmann::json Parsed(const std::string& text) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::string valid =
      nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, replace)).get<std::string>();
  return nlohmann::json::parse(valid, nullptr, /*allow_exceptions=*/false);
}

// A random text under the grammar; nullopt if it does not end soon.
std::optional<std::string> RandomText(const std::shared_ptr<Grammar>& grammar, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto mask = Grammar::NewMask(grammar, {});
  std::vector<int32_t> ids;
  while (ids.size() < 400) {
    const auto allowed = AllowedIds(*mask, ids);
    EXPECT_OK(allowed);
    EXPECT_FALSE(allowed->empty()) << TextOf(ids);
    if (!allowed.ok() || allowed->empty()) return std::nullopt;
    const std::vector<int32_t> list(allowed->begin(), allowed->end());
    if (allowed->contains(kEosId)) return TextOf(ids);
    // Close strings and objects more often than chance would.
    std::vector<int32_t> closing;
    for (const char c : {'"', '}', ']', ',', ':'}) {
      if (allowed->contains(2 + c)) closing.push_back(2 + c);
    }
    const auto& from = !closing.empty() && random() % 2 == 0 ? closing : list;
    ids.push_back(from[random() % from.size()]);
    if (random() % 2 == 0) mask->Prepare(ids);
  }
  return std::nullopt;
}

TEST(GrammarMaskTest, TextsUnderASchemaSatisfyIt) {
  const std::string schema = R"({
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                   "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
                   "child": {"$ref": "#/$defs/child"}},
    "required": ["name", "age", "tags"], "additionalProperties": false,
    "$defs": {"child": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                        "additionalProperties": false}}})";
  const auto compiler = NewCompiler();
  for (const bool any_whitespace : {false, true}) {
    ASSERT_OK_AND_ASSIGN(
        const auto grammar,
        compiler->Compile(
            {.spec = {.text = schema, .any_whitespace = any_whitespace}, .field = "f"}));
    int num_texts = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const std::optional<std::string> text = RandomText(grammar, seed);
      if (!text) continue;
      ++num_texts;
      const auto value = Parsed(*text);
      ASSERT_TRUE(value.is_object()) << *text;
      EXPECT_LE(value.at("name").get<std::string>().size(), 20u) << *text;
      EXPECT_TRUE(value.at("age").is_number_integer() && value.at("age") >= 0 &&
                  value.at("age") <= 120)
          << *text;
      const nlohmann::json& tags = value.at("tags");
      EXPECT_TRUE(tags.size() >= 1 && tags.size() <= 3) << *text;
      for (const auto& tag : tags) EXPECT_TRUE(tag == "x" || tag == "y") << *text;
      if (value.contains("child")) {
        EXPECT_TRUE(value.at("child").at("ok").is_boolean());
      }
      for (const auto& item : value.items())
        EXPECT_TRUE((std::set<std::string>{"name", "age", "tags", "child"}.contains(item.key())));
    }
    EXPECT_GT(num_texts, 30);
  }
}

// The code points of a UTF-8 text (RFC 3629); -1 if it is none.
int NumCodePoints(const std::string& text) {
  int num = 0;
  for (size_t i = 0; i < text.size(); ++num) {
    const auto byte = [&](size_t at) { return at < text.size() ? text[at] & 0xFF : 0; };
    const int lead = byte(i);
    const int length = lead < 0x80   ? 1
                       : lead < 0xC2 ? 0
                       : lead < 0xE0 ? 2
                       : lead < 0xF0 ? 3
                       : lead < 0xF5 ? 4
                                     : 0;
    if (length == 0) return -1;
    for (int b = 1; b < length; ++b) {
      if ((byte(i + b) & 0xC0) != 0x80) return -1;
    }
    const int second = byte(i + 1);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
      return -1;
    i += static_cast<size_t>(length);
  }
  return num;
}

TEST(GrammarMaskTest, AClassThatIsNegatedStandsForWholeCharacters) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "[^a\xC3\xA9]{3}"));
  std::set<size_t> lengths;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::optional<std::string> text = RandomText(grammar, seed);
    ASSERT_TRUE(text);
    EXPECT_EQ(NumCodePoints(*text), 3) << ::testing::PrintToString(*text);
    EXPECT_EQ(text->find('a'), std::string::npos);
    EXPECT_EQ(text->find("\xC3\xA9"), std::string::npos);
    lengths.insert(text->size());
  }
  EXPECT_GT(*lengths.rbegin(), 6u);
}

TEST(GrammarMaskTest, TextsOfAnyObjectAreJson) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar,
                       CompileWith(*compiler, Kind::kJsonSchema, R"({"type": "object"})"));
  int num_texts = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::optional<std::string> text = RandomText(grammar, seed);
    if (!text) continue;
    ++num_texts;
    EXPECT_TRUE(Parsed(*text).is_object()) << *text;
  }
  EXPECT_GT(num_texts, 10);
}

}  // namespace
}  // namespace taopd::testing
