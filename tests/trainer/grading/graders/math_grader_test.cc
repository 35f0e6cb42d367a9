#include "trainer/grading/graders/grader_rows.h"

#include <gtest/gtest.h>

#include "trainer/grading/graders/candidates.h"
#include "trainer/grading/latex/normalize.h"
#include "trainer/grading/latex/parser.h"

namespace taopd::grading {
namespace {

bool Correct(const std::string& response, const std::string& answer) {
  return GradeMath(response, answer).correct;
}
bool Equal(const std::string& answer, const std::string& gold) {
  return Correct("\\boxed{" + answer + "}", gold);
}

TEST(BoxedContent, LastWithItsNeighborsOrAll) {
  EXPECT_EQ(
      latex::BoxedContent("\\boxed{1} so far but the result is clearly \\boxed{\\frac{1}{2}}.",
                          latex::BoxedMode::kLast),
      "\\frac{1}{2}");
  EXPECT_EQ(latex::BoxedContent("\\boxed{1} and \\boxed{2}", latex::BoxedMode::kLast), "1,2");
  EXPECT_EQ(latex::BoxedContent("\\boxed{1} that is quite far away from \\fbox {2}",
                                latex::BoxedMode::kAll),
            "1,2");
  EXPECT_EQ(latex::BoxedContent("\\boxed{1} = \\boxed{1}", latex::BoxedMode::kAll), "1");
  EXPECT_EQ(latex::BoxedContent("\\boxed{{1}", latex::BoxedMode::kLast), "{{1}");
  EXPECT_EQ(latex::BoxedContent("none", latex::BoxedMode::kLast), "none");
}

TEST(Normalize, UnitsDecorationAndShorthand) {
  const auto normal = [](const char* text) {
    return latex::Normalize(text, latex::BoxedMode::kAll);
  };
  EXPECT_EQ(normal("\\dfrac12"), "\\frac{1}{2}");
  EXPECT_EQ(normal("\\left( 3, \\sqrt2 \\right)"), "( 3, \\sqrt{2} )");
  EXPECT_EQ(normal("12 \\text{ cm}^2"), "12");
  EXPECT_EQ(normal("12 miles"), "12");
  EXPECT_EQ(normal("\\$14{,}916"), "14,916");
  EXPECT_EQ(normal("28 percent"), "28\\%");
  EXPECT_EQ(normal("-3/4"), "\\frac{-3}{4}");
  EXPECT_EQ(normal("1 and 2 or 3"), "1, 2, 3");
  EXPECT_EQ(normal(".5"), "\\frac{1}{2}");
}

// The expected verdicts are those of math-verify 0.9.
TEST(MathGrader, MatricesAreMultiplied) {
  const std::string a = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
                    b = "\\begin{pmatrix}0&1\\\\1&0\\end{pmatrix}";
  const std::string product = "\\begin{pmatrix}2&1\\\\4&3\\end{pmatrix}";
  for (const std::string& factors : {a + b, a + "\\cdot " + b}) {
    EXPECT_TRUE(Equal(product, factors));
    EXPECT_TRUE(Equal(factors, product));
    EXPECT_FALSE(Equal(a, factors));
  }
  EXPECT_TRUE(Equal("\\begin{pmatrix}2&4\\\\6&8\\end{pmatrix}", "2" + a));
}

TEST(MathGrader, NearIsNotEqual) {
  EXPECT_FALSE(Equal("\\sqrt{2}+\\sqrt{3}+10^{-8}", "\\sqrt{2}+\\sqrt{3}"));
  // An element matches only one element.
  EXPECT_FALSE(Equal("\\{\\frac{1}{3},\\frac{1}{2}\\}", "\\{0.3333333,\\frac{1}{3}\\}"));
  EXPECT_TRUE(Equal("(0,1]", "(0,1)\\cup(0,1]"));
  EXPECT_FALSE(Equal("(0,1)", "(0,1)\\cup(0,1]"));
}

TEST(ExtractAnswer, PlacesByPriorityAndFromTheRight) {
  EXPECT_EQ(ExtractAnswer("first $1$ then $2$").value_text, "2");
  EXPECT_EQ(ExtractAnswer("the answer is $1$ because $2 < 3$").value_text, "1");
  EXPECT_EQ(ExtractAnswer("answer: 5. Check: 7").value_text, "5");
  EXPECT_EQ(ExtractAnswer("\\boxed{4} although the answer: 5").value_text, "4");
  EXPECT_EQ(ExtractAnswer("The final answer is $3$. I hope it is correct. \\boxed{9}").value_text,
            "3");
  EXPECT_EQ(ExtractAnswer("$1$, $2$ and $3$").value_text, "1 and 2 and 3");
  EXPECT_EQ(ExtractAnswer("it costs $1,000.99 in all").value_text, "1000.99");
  EXPECT_EQ(ExtractAnswer("nothing").value, nullptr);
}

TEST(AnswerRegion, FromTheFirstMarkerToTheSecondOrTheFirstBox) {
  EXPECT_EQ(AnswerRegion("a **Answer** b **Final Answer** c"), "**Answer** b ");
  EXPECT_EQ(AnswerRegion("a **Answer:** \\boxed{{1}} \\boxed{2}"), "**Answer:** \\boxed{{1}}");
  EXPECT_EQ(AnswerRegion("plain"), "plain");
}

TEST(MathGrader, NumbersInTheirSpellings) {
  EXPECT_TRUE(Equal("1/2", "0.5"));
  EXPECT_TRUE(Equal("2\\frac{1}{2}", "\\frac{5}{2}"));
  EXPECT_TRUE(Equal("1{,}234", "1234"));
  EXPECT_TRUE(Equal("0.333333", "\\frac{1}{3}"));
  EXPECT_FALSE(Equal("0.333", "\\frac{1}{3}"));
  EXPECT_TRUE(Equal("9\\%", "9"));
  EXPECT_TRUE(Equal("50\\%", "\\frac{1}{2}"));
  EXPECT_FALSE(Equal("5", "-5"));
  EXPECT_FALSE(Equal("2^{100}+1", "2^{100}"));
  EXPECT_TRUE(Equal("2^{100}", "1267650600228229401496703205376"));
}

// The verdicts are math-verify 0.9's.
TEST(MathGrader, CommasInNumbers) {
  EXPECT_TRUE(Equal("1,234,567.5", "1234567.5"));
  EXPECT_TRUE(Equal("0,500", "0.5"));
  EXPECT_FALSE(Equal("-0,500", "-500"));
  EXPECT_FALSE(Equal("-0,500", "-0.5"));
  EXPECT_TRUE(Equal("-0,500.5", "-500.5"));
  EXPECT_TRUE(Equal("-0,000", "0"));
  EXPECT_FALSE(Equal("0,500,000", "0.5"));
  EXPECT_TRUE(Equal("0,12,345", "\\{0,12,345\\}"));
}

TEST(MathGrader, ValuesWhereTextDiffers) {
  EXPECT_TRUE(Equal("\\sqrt{8}", "2\\sqrt{2}"));
  EXPECT_TRUE(Equal("\\frac{1}{\\sqrt{2}+1}", "\\sqrt{2}-1"));
  EXPECT_TRUE(Equal("(x+1)^2", "x^2+2x+1"));
  EXPECT_TRUE(Equal("1-\\cos^2 x", "\\sin^2 x"));
  EXPECT_TRUE(Equal("\\ln 8", "3\\ln 2"));
  EXPECT_FALSE(Equal("x^2+2x+2", "x^2+2x+1"));
  EXPECT_FALSE(Equal("\\sqrt{x^2}", "x"));  // not for negative x
}

TEST(MathGrader, EquationsAndRelations) {
  EXPECT_TRUE(Equal("x = 5", "5"));
  EXPECT_TRUE(Equal("5", "x = 5"));
  EXPECT_FALSE(Equal("y = 5", "x = 5"));
  EXPECT_TRUE(Equal("2x+2y=4", "x+y=2"));
  EXPECT_TRUE(Equal("3 < x", "x > 3"));
  EXPECT_FALSE(Equal("x < 3", "x > 3"));
  EXPECT_FALSE(Equal("x \\le 3", "x < 3"));
}

TEST(MathGrader, SetsTuplesIntervalsMatrices) {
  EXPECT_TRUE(Equal("3, 1, 2", "1,2,3"));
  EXPECT_FALSE(Equal("(2,1,3)", "(1,2,3)"));
  EXPECT_FALSE(Equal("[0,1)", "(0,1)"));
  EXPECT_TRUE(Equal("(-\\infty,1)\\cup(1,\\infty)", "(1,\\infty)\\cup(-\\infty,1)"));
  EXPECT_TRUE(Equal("(1,3)", "1 < x < 3"));
  EXPECT_TRUE(Equal("1 \\pm \\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"));
  EXPECT_TRUE(Equal("\\begin{bmatrix}0.5\\\\1\\end{bmatrix}",
                    "\\begin{pmatrix}\\frac12\\\\1\\end{pmatrix}"));
  EXPECT_FALSE(Equal("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"));
}

TEST(MathGrader, ReasonsSayWhy) {
  EXPECT_EQ(GradeMath("\\boxed{4}", "4").reason, "equal");
  EXPECT_EQ(GradeMath("\\boxed{4}", "5").reason, "not equal");
  EXPECT_EQ(GradeMath("I do not know", "5").reason, "no answer found");
  EXPECT_EQ(GradeMath("", "").correct, false);
}

}  // namespace
}  // namespace taopd::grading
