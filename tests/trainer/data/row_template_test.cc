#include "trainer/data/row_template.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

absl::StatusOr<std::string> Name(const std::string& name) {
  if (name == "lost") return absl::NotFoundError("has no lost");
  return "<" + name + ">";
}

TEST(RowTemplateTest, NamesBecomeTheirValuesAndOtherBracesStay) {
  const std::pair<const char*, const char*> cases[] = {
      {"{prompt} and {a.b}", "<prompt> and <a.b>"},
      {"\\boxed{} {x y} {", "\\boxed{} {x y} {"},
      {"\\frac{{a}}{{prompt}} }", "\\frac{a}{prompt} }"},
      {"{{{prompt}}}", "{<prompt>}"},
      {"{prompt}{prompt}", "<prompt><prompt>"},
      {"plain", "plain"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(*RowTemplate(text).Fill(Name), expected) << text;
  }
}

TEST(RowTemplateTest, ListsItsNames) {
  const RowTemplate words("{prompt}: {solution}, {prompt}, {{answer}}");
  EXPECT_EQ(words.Names(), (std::vector<std::string>{"prompt", "solution", "prompt"}));
  EXPECT_TRUE(words.Has("solution"));
  EXPECT_FALSE(words.Has("answer"));
  EXPECT_FALSE(words.Has(": "));
  EXPECT_TRUE(RowTemplate("").empty());
}

TEST(RowTemplateTest, TheFirstErrorIsTheResult) {
  EXPECT_ERROR(RowTemplate("{prompt} {lost}").Fill(Name), kNotFound, "has no lost");
}

}  // namespace
}  // namespace taopd::testing
