#include "trainer/eval/grader.h"

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

TEST(Grader, ExactComparesTheExtractedText) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("exact", "#(.*)$"));
  EXPECT_TRUE(grader->Grade("w22 7+9#12846", "12846").correct);
  EXPECT_EQ(grader->Grade("w22 7+9#12847", "12846").extracted, "12847");
  EXPECT_FALSE(grader->Grade("w22 7+9#12847", "12846").correct);
  EXPECT_FALSE(grader->Grade("no answer", "12846").correct);
  EXPECT_FALSE(grader->Grade("#12846 and more", "12846").correct);
  EXPECT_FALSE(grader->Grade("#", "0").correct);
}

TEST(Grader, WholeResponseWithoutAPattern) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("exact", ""));
  EXPECT_TRUE(grader->Grade(" yes\n", "yes").correct);
  EXPECT_FALSE(grader->Grade("yes indeed", "yes").correct);
}

TEST(Grader, NumericIgnoresSpelling) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("numeric", "=\\s*([-+0-9.,e]+)"));
  EXPECT_TRUE(grader->Grade("x = 1,234.50", "1234.5").correct);
  EXPECT_TRUE(grader->Grade("x = 007", "7").correct);
  EXPECT_TRUE(grader->Grade("x = +7", "7").correct);
  EXPECT_FALSE(grader->Grade("x = 7.1", "7").correct);
  EXPECT_FALSE(grader->Grade("x = .", ".").correct);
  EXPECT_FALSE(grader->Grade("x = 1e999", "1e999").correct);
}

TEST(Grader, BadPatternsAreRefused) {
  EXPECT_ERROR(Grader::Make("exact", "(("), absl::StatusCode::kInvalidArgument, "answer_pattern");
  EXPECT_ERROR(Grader::Make("exact", "abc"), absl::StatusCode::kInvalidArgument, "no group");
  EXPECT_ERROR(Grader::Make("fuzzy", ""), absl::StatusCode::kInvalidArgument, "fuzzy");
}

TEST(Grader, HugeResponsesTakeLinearTime) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("exact", "(a*)*b"));
  EXPECT_FALSE(grader->Grade(std::string(1 << 20, 'a'), "x").correct);
}

// The definition (Wilson, 1927): both ends p solve (share - p)^2 = z^2 p (1 - p) / n.
TEST(WilsonInterval, EndsSolveTheScoreEquation) {
  constexpr double kZ = 1.959963984540054;
  for (double trials : {1.0, 10.0, 400.0}) {
    for (double share : {0.0, 0.1, 0.5, 0.93, 1.0}) {
      const Interval interval = WilsonInterval(share * trials, trials);
      for (double p : {interval.low, interval.high}) {
        EXPECT_NEAR((share - p) * (share - p), kZ * kZ * p * (1 - p) / trials, 1e-14) << share << " of " << trials;
      }
      EXPECT_LE(interval.low, share + 1e-15);
      EXPECT_GE(interval.high, share - 1e-15);
      EXPECT_LT(interval.low, interval.high);
    }
  }
  EXPECT_EQ(WilsonInterval(0, 0).low, 0.0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1.0);
}

}  // namespace
}  // namespace taopd
