#include "server/structured/grammar_spec.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Kind = GrammarSpec::Kind;

TEST(GrammarSpecTest, TextsBeyondTheLimitsAreRefusedByName) {
  const auto check = [](Kind kind, const std::string& text) {
    return CheckGrammarSpec({.kind = kind, .text = text}, "the_field");
  };
  const auto repeated = [](const std::string& piece, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += piece;
    return out;
  };
  EXPECT_OK(check(Kind::kRegex, "a"));
  EXPECT_OK(check(Kind::kRegex, std::string(kMaxRegexBytes, 'a')));
  EXPECT_ERROR(check(Kind::kRegex, std::string(kMaxRegexBytes + 1, 'a')), kInvalidArgument,
               "the_field has 16385 bytes, the limit is 16384");
  EXPECT_ERROR(check(Kind::kEbnf, std::string(kMaxGrammarBytes + 1, 'a')), kInvalidArgument,
               "the limit is 131072");
  for (const Kind kind : {Kind::kJsonSchema, Kind::kRegex, Kind::kEbnf, Kind::kStructuralTag})
    EXPECT_ERROR(check(kind, " \n"), kInvalidArgument, "the_field cannot be empty");
  EXPECT_ERROR(check(Kind::kRegex, std::string("a\0b", 3)), kInvalidArgument, "NUL");
  EXPECT_OK(check(Kind::kRegex, repeated("(", 64)));
  EXPECT_ERROR(check(Kind::kRegex, repeated("(", 65)), kInvalidArgument, "at most 64 levels");
  EXPECT_OK(check(Kind::kRegex, repeated("\\(", 65)));
  EXPECT_OK(check(Kind::kJsonSchema, "{\"const\": \"" + repeated("[", 65) + "\"}"));
  EXPECT_OK(check(Kind::kJsonSchema, repeated("[", 64) + repeated("]", 64)));
  EXPECT_ERROR(check(Kind::kJsonSchema, repeated("[", 65) + repeated("]", 65)), kInvalidArgument,
               "nested too deeply");
  EXPECT_OK(check(Kind::kStructuralTag, "{\"a\":" + repeated("[", 79) + repeated("]", 79) + "}"));
  EXPECT_ERROR(check(Kind::kStructuralTag, " [1]"), kInvalidArgument, "must be an object");
  EXPECT_ERROR(check(Kind::kJsonSchema, "{\"type\": "), kInvalidArgument, "is not valid JSON");
}

TEST(GrammarSpecTest, GrammarsAreToldApartAsVllmDoes) {
  EXPECT_EQ(GrammarOfText("root ::= \"a\"").kind, Kind::kEbnf);
  EXPECT_EQ(GrammarOfText("# a comment\nroot ::= \"a\"").kind, Kind::kEbnf);
  EXPECT_EQ(GrammarOfText("start: \"a\"  // not ::=").kind, Kind::kLark);
  EXPECT_EQ(GrammarOfText("start: \"a\"").kind, Kind::kLark);
}

TEST(GrammarSpecTest, OlderStructuralTagsAreConverted) {
  const std::string current =
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[)"
      R"({"type":"tag","begin":"<f>","content":{"type":"json_schema","json_schema":{"b":1,"a":2}},)"
      R"("end":"</f>"}]}})";
  EXPECT_EQ(
      CurrentStructuralTag(R"({"type":"structural_tag","structures":[{"begin":"<f>","schema":)"
                           R"({"b":1,"a":2},"end":"</f>"}],"triggers":["<f"]})"),
      current);
  for (const std::string& other : {current, std::string("["), std::string("[\"structures\"]"),
                                   std::string(R"({"structures":[1],"triggers":[]})")})
    EXPECT_EQ(CurrentStructuralTag(other), other);
}

TEST(GrammarSpecTest, ChoicesBecomeTerminals) {
  EXPECT_EQ(GrammarOfChoices({"a", "\"\\\n\x01"}).text, R"(root ::= "a" | "\"\\\n\u0001")");
}

}  // namespace
}  // namespace taopd::testing
