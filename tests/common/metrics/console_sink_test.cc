#include "common/metrics/console_sink.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <sstream>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Style = ConsoleColumn::Style;

class ConsoleSinkTest : public ::testing::Test {
 protected:
  // Returns the text written since the last call.
  std::string Output() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }
  std::ostringstream out_;
  ManualClock clock_;
};

TEST_F(ConsoleSinkTest, TheLineOfTheHeader) {
  ConsoleSink sink({.total_steps = 200}, &out_, &clock_);
  clock_.Advance(absl::Seconds(375));
  EXPECT_OK(sink.Write(120, {{"loss/mean", 0.12341},
                             {"policy/student_tail", 0.00311},
                             {"policy/teacher_tail", 0.000899},
                             {"policy/entropy", 0.412},
                             {"rollout/accuracy", 0.375},
                             {"optim/lr", 1e-6},
                             {"time/tokens_per_s", 2315.2}}));
  EXPECT_EQ(Output(),
            "step 120/200  loss 0.1234  tail 0.0031  teacher 0.0009  entropy 0.41  acc 37.5%  "
            "2315 tok/s  ETA 4m10s\n");
}

TEST_F(ConsoleSinkTest, PlainLinesKeepTheirInterval) {
  const ConsoleOptions options = {
      .columns = {{"v", "v", 0}, {"e", "eval", 1, Style::kPercent, true}},
      .total_steps = 5,
      .plain_interval = absl::Seconds(10)};
  std::optional<ConsoleSink> owner(std::in_place, options, &out_, &clock_);
  ConsoleSink& sink = *owner;
  EXPECT_OK(sink.Write(1, {{"v", 1}}));
  EXPECT_EQ(Output(), "step 1/5  v 1  ETA 0s\n");
  clock_.Advance(absl::Seconds(9));
  EXPECT_OK(sink.Write(2, {{"v", 2}}));
  EXPECT_EQ(Output(), "");
  EXPECT_OK(sink.Write(2, {{"e", 0.5}}));  // a milestone is never left out
  EXPECT_EQ(Output(), "step 2/5  v 2  eval 50.0%  ETA 14s\n");
  clock_.Advance(absl::Seconds(10));
  EXPECT_OK(sink.Write(3, {{"v", 3}}));
  EXPECT_EQ(Output(), "step 3/5  v 3  eval 50.0%  ETA 13s\n");
  EXPECT_OK(sink.Write(4, {{"v", 4}}));
  EXPECT_EQ(Output(), "");
  EXPECT_OK(sink.Write(5, {{"v", 5}}));  // nor is the last step, which is written in the end
  EXPECT_EQ(Output(), "");
  owner.reset();
  EXPECT_EQ(Output(), "step 5/5  v 5  eval 50.0%\n");
}

TEST_F(ConsoleSinkTest, TheLastStepHasOneLine) {
  for (const bool is_terminal : {false, true}) {
    {
      ConsoleSink sink({.columns = {{"v", "v", 0}, {"e", "e", 0, Style::kFixed, true}},
                        .total_steps = 2,
                        .is_terminal = is_terminal},
                       &out_, &clock_);
      EXPECT_OK(sink.Write(1, {{"v", 1}}));
      EXPECT_OK(sink.Write(2, {{"v", 2}}));
      Output();
      EXPECT_OK(sink.Write(2, {{"e", 3}}));
      EXPECT_EQ(Output(), is_terminal ? "\r\x1b[Kstep 2/2  v 2  e 3\n" : "step 2/2  v 2  e 3\n");
    }
    EXPECT_EQ(Output(), "");
  }
}

TEST_F(ConsoleSinkTest, ATerminalKeepsOneLine) {
  {
    ConsoleSink sink({.columns = {{"v", "v", 0}, {"e", "e", 0, Style::kFixed, true}},
                      .is_terminal = true,
                      .terminal_width = 10},
                     &out_, &clock_);
    EXPECT_OK(sink.Write(1, {{"v", 1}}));
    EXPECT_EQ(Output(), "\r\x1b[Kstep 1  v");  // cut at the width
    EXPECT_OK(sink.Write(2, {{"e", 3}}));
    EXPECT_EQ(Output(), "\r\x1b[Kstep 2  v 1  e 3\nstep 1  v\r\x1b[Kstep 2  v");
  }
  EXPECT_EQ(Output(), "\n");
}

TEST_F(ConsoleSinkTest, EtaOfAResumedRunCountsItsOwnSteps) {
  ConsoleSink sink({.columns = {}, .total_steps = 1000, .first_step = 900}, &out_, &clock_);
  EXPECT_OK(sink.Write(900, {}));  // an evaluation before the first step
  EXPECT_EQ(Output(), "step 900/1000\n");
  clock_.Advance(absl::Hours(1));
  EXPECT_OK(sink.Write(910, {}));
  EXPECT_EQ(Output(), "step 910/1000  ETA 9h00m\n");
  clock_.Advance(absl::Hours(60));
  EXPECT_OK(sink.Write(950, {}));
  EXPECT_EQ(Output(), "step 950/1000  ETA 2d13h\n");
}

// The times that the steps report count; a pause between them does not.
TEST_F(ConsoleSinkTest, EtaLeavesOutPauses) {
  ConsoleSink sink({.columns = {}, .total_steps = 12}, &out_, &clock_);
  EXPECT_OK(sink.Write(1, {{"time/step_s", 2}, {"time/save_s", 0}, {"time/evaluation_s", 0}}));
  EXPECT_EQ(Output(), "step 1/12  ETA 22s\n");
  clock_.Advance(absl::Hours(5));
  EXPECT_OK(sink.Write(2, {{"time/step_s", 4}, {"time/save_s", 1}, {"time/evaluation_s", 3}}));
  EXPECT_EQ(Output(), "step 2/12  ETA 50s\n");
  EXPECT_OK(sink.Write(2, {{"eval/accuracy", 0.5}}));  // no step
  EXPECT_EQ(Output(), "step 2/12  ETA 50s\n");
}

TEST_F(ConsoleSinkTest, NumbersThatWouldFillTheScreen) {
  ConsoleSink sink({.columns = {{"a", "a", 2},
                                {"b", "b", 1, Style::kPercent},
                                {"c", "c", 2, Style::kSignificant},
                                {"d", "d", 1}}},
                   &out_, &clock_);
  EXPECT_OK(sink.Write(1, {{"a", 1e300},
                           {"b", std::numeric_limits<double>::quiet_NaN()},
                           {"c", 1.23e-7},
                           {"d", -std::numeric_limits<double>::infinity()}}));
  EXPECT_EQ(Output(), "step 1  a 1e+300  b nan%  c 1.2e-07  d -inf\n");
}

TEST_F(ConsoleSinkTest, AClosedStreamIsAnError) {
  ConsoleSink sink({}, &out_, &clock_);
  out_.setstate(std::ios::badbit);
  EXPECT_FALSE(sink.Write(1, {}).ok());
}

}  // namespace
}  // namespace taopd::testing
