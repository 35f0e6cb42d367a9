#include "common/metrics/prometheus.h"

#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <limits>
#include <memory>

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PrometheusSinkTest : public ::testing::Test {
 protected:
  std::string Page() const { return RenderPrometheusText(*registry_); }
  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  PrometheusSink sink_{registry_};
};

TEST_F(PrometheusSinkTest, GaugesHoldTheLastValues) {
  EXPECT_OK(sink_.Write(1, {{"loss/mean", 0.5}, {"time/tokens-per_s", 10}}));
  EXPECT_OK(sink_.Write(2, {{"loss/mean", 0.25}}));
  EXPECT_EQ(Page(),
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

TEST_F(PrometheusSinkTest, NonFiniteValuesAreShown) {
  EXPECT_OK(sink_.Write(1, {{"a", std::numeric_limits<double>::quiet_NaN()},
                            {"b", std::numeric_limits<double>::infinity()}}));
  EXPECT_THAT(Page(), HasSubstr("taopd_trainer_a Nan"));
  EXPECT_THAT(Page(), HasSubstr("taopd_trainer_b +Inf"));
}

TEST_F(PrometheusSinkTest, NamesThatCannotBeGaugesAreRefusedAndTheRestIsSet) {
  EXPECT_ERROR(sink_.Write(1, {{"bad name", 1}, {"good", 2}}), absl::StatusCode::kInvalidArgument,
               "bad name");
  EXPECT_ERROR(sink_.Write(2, {{"a/b", 1}, {"a_b", 5}}), absl::StatusCode::kInvalidArgument,
               "metric \"a_b\" would share the gauge taopd_trainer_a_b with metric \"a/b\"");
  EXPECT_THAT(Page(), HasSubstr("taopd_trainer_good 2\n"));
  EXPECT_THAT(Page(), HasSubstr("taopd_trainer_a_b 1\n"));
  EXPECT_THAT(Page(), Not(HasSubstr("bad")));
}

TEST_F(PrometheusSinkTest, ThePageHoldsOtherFamiliesOfTheRegistry) {
  prometheus::BuildCounter()
      .Name("taopd_requests_total")
      .Register(*registry_)
      .Add({{"code", "OK"}})
      .Increment(3);
  auto& histogram = prometheus::BuildHistogram()
                        .Name("taopd_seconds")
                        .Register(*registry_)
                        .Add({}, prometheus::Histogram::BucketBoundaries{1, 2});
  histogram.Observe(1.5);
  EXPECT_OK(sink_.Write(1, {}));
  EXPECT_THAT(Page(), HasSubstr("taopd_requests_total{code=\"OK\"} 3\n"));
  EXPECT_THAT(Page(), HasSubstr("taopd_seconds_bucket{le=\"2\"} 1\n"));
  EXPECT_THAT(Page(), HasSubstr("taopd_trainer_step 1\n"));
}

}  // namespace
}  // namespace taopd
