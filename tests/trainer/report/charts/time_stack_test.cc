// Tests of the chart of a step's time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/report/charts/chart.h"

namespace taopd::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunRecord RunOf(int64_t num_steps) {
  RunRecord run;
  run.name = "a<b";
  for (int64_t step = 1; step <= num_steps; ++step) {
    run.series["time/step_s"].push_back({step, 10});
    run.series["time/rollout_wait_s"].push_back({step, 4});
    run.series["time/forward_s"].push_back({step, 2});
    run.series["time/backward_s"].push_back({step, 3});
    run.series["time/save_s"].push_back({step, step % 2 == 0 ? 20.0 : 0.0});
  }
  return run;
}

// Saving is not part of the step: on average a step takes 10 s and saving 10 s.
TEST(TimeStack, SharesAddUpToOne) {
  for (const int64_t num_steps : {2, 100, 1000}) {
    const std::string html = RenderTimeStack(RunOf(num_steps), 0);
    for (const char* share :
         {"rollout 20%", "forward 10%", "backward 15%", "other 5%", "saving 50%"}) {
      EXPECT_THAT(html, HasSubstr(share)) << num_steps;
    }
    EXPECT_THAT(html, Not(HasSubstr("optimizer"))) << "what takes no time has no area";
    EXPECT_THAT(html, HasSubstr("a&lt;b"));
  }
}

TEST(TimeStack, AreasLieOnTopOfEachOther) {
  RunRecord run = RunOf(2);
  run.series.erase("time/save_s");
  const std::string html = RenderTimeStack(run, 3);
  // From 0 to 4 of 10 seconds and from there to 6; the scale ends a little above 10.
  EXPECT_THAT(html, HasSubstr("stack-0\" d=\"M48.0 222.0L428.0 222.0L"));
  const auto path_of = [&](const std::string& part) {
    const size_t plot = html.find("class=\"plot\"");  // after the key
    const size_t begin = html.find("stack-" + part + "\" d=\"", plot) + part.size() + 11;
    return html.substr(begin, html.find('Z', begin) - begin);
  };
  // An area ends, and the next one begins, at the left end of the line between them.
  const std::string rollout = path_of("0"), forward = path_of("3");
  EXPECT_EQ(rollout.substr(rollout.rfind("L48.0 ") + 1), forward.substr(1, forward.find('L') - 1));
  EXPECT_THAT(html, HasSubstr("id=\"time-stack-3\""));
}

TEST(TimeStack, ARunWithoutPhasesHasNone) {
  RunRecord run = RunOf(2);
  run.series.erase("time/forward_s");
  EXPECT_EQ(RenderTimeStack(run, 0), "");
  EXPECT_EQ(RenderTimeStack(RunRecord(), 0), "");
}

}  // namespace
}  // namespace taopd::report
