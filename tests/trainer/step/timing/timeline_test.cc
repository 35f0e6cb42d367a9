// Tests of the timeline in the form that viewers read.
#include "trainer/step/timing/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/step/timing/phase_times.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

TEST(Timeline, SpansThatOverlapGetRowsOfTheirOwnWithNames) {
  Timeline timeline;
  timeline.Add(TimelineTrack::kTeacher, "b", At(2), At(5));
  timeline.Add(TimelineTrack::kTrainer, "forward", At(1), At(2));
  timeline.Add(TimelineTrack::kTrainer, "head", At(2), At(2.5));
  timeline.Add(TimelineTrack::kTeacher, "a", At(1), At(3));
  timeline.Add(TimelineTrack::kTeacher, "c \"quoted\"", At(3), At(4));
  timeline.Add(TimelineTrack::kRollout, "backwards", At(3), At(2));
  const json trace = json::parse(timeline.Json());
  std::map<int64_t, std::string> rows;
  std::map<std::string, json> spans;
  for (const json& event : trace.at("traceEvents")) {
    EXPECT_TRUE(event.contains("pid") && event.contains("tid"));
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    EXPECT_GE(event.at("dur").get<double>(), 0);
    spans[event.at("name")] = event;
  }
  ASSERT_EQ(spans.size(), 6u);
  EXPECT_EQ(spans["forward"]["ts"], 0);
  EXPECT_EQ(spans["head"]["ts"], 1e6);
  EXPECT_EQ(spans["head"]["dur"], 0.5e6);
  EXPECT_EQ(rows[spans["forward"]["tid"]], "training");
  EXPECT_EQ(rows[spans["head"]["tid"]], "training");
  EXPECT_EQ(rows[spans["a"]["tid"]], "teacher 1");
  EXPECT_EQ(rows[spans["b"]["tid"]], "teacher 2");
  EXPECT_EQ(rows[spans["c \"quoted\""]["tid"]], "teacher 1");  // free again
  EXPECT_EQ(rows[spans["backwards"]["tid"]], "rollout");
}

TEST(Timeline, IsBoundedAndSaysWhatItDrops) {
  Timeline timeline;
  for (size_t i = 0; i < Timeline::kMaxSpans + 3; ++i) {
    timeline.Add(TimelineTrack::kTrainer, "x", At(0), At(0));  // all in one row
  }
  EXPECT_NE(timeline.Json().find("taopd-trainer (3 later spans are missing)"), std::string::npos);
  EXPECT_TRUE(json::parse(Timeline().Json()).is_object());
}

TEST(PhaseTimes, EveryPhaseHasANameOfItsOwn) {
  std::set<std::string> names;
  for (size_t i = 0; i < static_cast<size_t>(Phase::kNumPhases); ++i) {
    names.insert(PhaseName(static_cast<Phase>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Phase::kNumPhases));
  EXPECT_TRUE(names.contains("forward"));
}

}  // namespace
}  // namespace taopd::testing
