#include "trainer/report/charts/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace taopd::report {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Labels(const Scale& scale) {
  std::vector<std::string> labels;
  for (const Tick& tick : scale.ticks) labels.push_back(tick.label);
  return labels;
}

TEST(Scale, RoundTicksThatIncludeAZeroThatIsNear) {
  EXPECT_THAT(Labels(MakeScale({0.1, 0.93}, {})), ElementsAre("0", "0.2", "0.4", "0.6", "0.8"));
  EXPECT_THAT(Labels(MakeScale({2000, 2310}, {})),
              ElementsAre("2000", "2050", "2100", "2150", "2200", "2250", "2300"));
  EXPECT_THAT(Labels(MakeScale({-3, 7}, {})), ElementsAre("-2", "0", "2", "4", "6"));
  EXPECT_THAT(Labels(MakeScale({0, 1.1e-6}, {})),
              ElementsAre("0", "2e-7", "4e-7", "6e-7", "8e-7", "1e-6"));
}

TEST(Scale, SharesStayBetweenZeroAndOne) {
  const ScaleOptions share = {.style = NumberStyle::kPercent, .floor = 0, .ceiling = 1};
  const Scale scale = MakeScale({0.2, 0.99}, share);
  EXPECT_EQ(scale.min, 0);
  EXPECT_EQ(scale.max, 1);
  EXPECT_THAT(Labels(scale), ElementsAre("0%", "20%", "40%", "60%", "80%", "100%"));
}

TEST(Scale, LogWhereValuesSpanDecades) {
  const ScaleOptions log = {.allow_log = true};
  // Linear, because only two thirds are positive.
  const Scale wide = MakeScale({3e-7, 0.2, 0}, log);
  EXPECT_FALSE(wide.log);
  const Scale scale = MakeScale({3e-7, 2e-3, 0.02, 0.2}, log);
  EXPECT_TRUE(scale.log);
  EXPECT_THAT(Labels(scale), ElementsAre("1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1"));
  EXPECT_FALSE(MakeScale({0.1, 1}, log).log);     // one decade
  EXPECT_FALSE(MakeScale({-0.001, 1}, log).log);  // crosses zero
  EXPECT_FALSE(MakeScale({0.0001, 1}, {}).log);   // log axes are not allowed
  EXPECT_THAT(Labels(MakeScale({0.04, 2}, log)),
              ElementsAre("0.05", "0.1", "0.2", "0.5", "1", "2"));
}

TEST(Scale, ConstantValuesGetARange) {
  for (const double value : {0.0, 1e-6, -5.0, 1e15, 1e300}) {
    const Scale scale = MakeScale({value, value}, {});
    EXPECT_LT(scale.min, scale.max) << value;
    EXPECT_LE(scale.min, value);
    EXPECT_GE(scale.max, value);
    EXPECT_GE(scale.ticks.size(), 2u) << value;
  }
}

TEST(Scale, AnyFiniteValuesGiveFewTicksInsideTheRange) {
  RandomStream random(3, "scale");
  for (int i = 0; i < 3000; ++i) {
    std::vector<double> values;
    for (int j = 0; j < 2 + i % 3; ++j) {
      // Any bit pattern, including denormals and numbers near the limits.
      const double value = std::bit_cast<double>(random.NextU64());
      if (std::isfinite(value)) values.push_back(i % 2 ? std::abs(value) : value);
    }
    const Scale scale = MakeScale(values, {.allow_log = i % 4 != 0});
    ASSERT_LT(scale.min, scale.max);
    ASSERT_TRUE(std::isfinite(scale.min) && std::isfinite(scale.max));
    ASSERT_LE(scale.ticks.size(), 15u);
    for (const Tick& tick : scale.ticks) {
      ASSERT_GE(scale.Fraction(tick.value), -1e-6) << tick.label;
      ASSERT_LE(scale.Fraction(tick.value), 1 + 1e-6) << tick.label;
    }
    for (const double value : values) {
      if (scale.log && value <= 0) continue;
      ASSERT_GE(scale.Fraction(value), -1e-6) << value;
      ASSERT_LE(scale.Fraction(value), 1 + 1e-6) << value;
    }
  }
}

TEST(Scale, StepsAreWhole) {
  EXPECT_THAT(Labels(MakeStepScale(0, 3)), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(Labels(MakeStepScale(0, 20000)), ElementsAre("0", "5000", "10k", "15k", "20k"));
  EXPECT_THAT(Labels(MakeStepScale(7, 7)), ElementsAre("7", "8"));
}

TEST(FormatNumber, ShortAndRight) {
  EXPECT_EQ(FormatNumber(0), "0");
  EXPECT_EQ(FormatNumber(0.00312), "0.00312");
  EXPECT_EQ(FormatNumber(0.000312), "3.12e-4");
  EXPECT_EQ(FormatNumber(-1.5), "-1.5");
  EXPECT_EQ(FormatNumber(2315.4), "2315");
  EXPECT_EQ(FormatNumber(51234), "51.2k");
  EXPECT_EQ(FormatNumber(2.5e6), "2.5M");
  EXPECT_EQ(FormatNumber(3e13), "3e13");
  EXPECT_EQ(FormatNumber(0.375, NumberStyle::kPercent), "37.5%");
  EXPECT_EQ(FormatNumber(1, NumberStyle::kPercent), "100%");
  EXPECT_EQ(FormatNumber(0.0001234, NumberStyle::kPercent), "0.0123%");
  EXPECT_EQ(FormatNumber(0.005, NumberStyle::kPercent, 1),
            "0.5%");  // a tick between 0 and 1 percent
  EXPECT_EQ(FormatNumber(0, NumberStyle::kPercent), "0%");
  EXPECT_EQ(FormatNumber(std::numeric_limits<double>::quiet_NaN()), "not a number");
}

}  // namespace
}  // namespace taopd::report
