#include "common/metrics/prometheus.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(PrometheusSinkTest, GaugesHoldTheLastValues) {
  PrometheusSink sink;
  EXPECT_OK(sink.Write(1, {{"loss/mean", 0.5}, {"time/tokens-per_s", 10}}));
  EXPECT_OK(sink.Write(2, {{"loss/mean", 0.25}}));
  EXPECT_EQ(sink.Page(),
            "# HELP taopd_trainer_step Last value of step.\n"
            "# TYPE taopd_trainer_step gauge\n"
            "taopd_trainer_step 2\n"
            "# HELP taopd_trainer_loss_mean Last value of loss/mean.\n"
            "# TYPE taopd_trainer_loss_mean gauge\n"
            "taopd_trainer_loss_mean 0.25\n"
            "# HELP taopd_trainer_time_tokens_per_s Last value of time/tokens-per_s.\n"
            "# TYPE taopd_trainer_time_tokens_per_s gauge\n"
            "taopd_trainer_time_tokens_per_s 10\n");
}

TEST(PrometheusSinkTest, NonFiniteValuesAreShown) {
  PrometheusSink sink;
  EXPECT_OK(sink.Write(1, {{"a", std::numeric_limits<double>::quiet_NaN()},
                           {"b", std::numeric_limits<double>::infinity()}}));
  EXPECT_THAT(sink.Page(), HasSubstr("taopd_trainer_a Nan"));
  EXPECT_THAT(sink.Page(), HasSubstr("taopd_trainer_b +Inf"));
}

TEST(PrometheusSinkTest, NamesThatCannotBeGaugesAreRefusedAndTheRestIsSet) {
  PrometheusSink sink;
  EXPECT_ERROR(sink.Write(1, {{"bad name", 1}, {"good", 2}}), kInvalidArgument, "bad name");
  EXPECT_ERROR(sink.Write(2, {{"a/b", 1}, {"a_b", 5}}), kInvalidArgument,
               "metric \"a_b\" would share the gauge taopd_trainer_a_b with metric \"a/b\"");
  EXPECT_THAT(sink.Page(), HasSubstr("taopd_trainer_good 2\n"));
  EXPECT_THAT(sink.Page(), HasSubstr("taopd_trainer_a_b 1\n"));
  EXPECT_THAT(sink.Page(), Not(HasSubstr("bad")));
}

}  // namespace
}  // namespace taopd::testing
