#include "trainer/teacher/routing_teacher_client.h"

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"
#include "trainer/teacher/teacher_metrics.h"

namespace taopd::testing {
namespace {

class RoutingTest : public ::testing::Test {
 protected:
  // Two teachers: "math" for gsm8k, "rest" for all else or for "web" alone.
  std::unique_ptr<RoutingTeacherClient> MakeClient(const std::vector<std::string>& rest_sources) {
    math_.Start();
    rest_.Start();
    std::vector<RoutedTeacher> teachers;
    teachers.push_back({"math", *MakeNetworkTeacherClient(FastOptions({&math_})), {"gsm8k"}, 2.0});
    teachers.push_back(
        {"rest", *MakeNetworkTeacherClient(FastOptions({&rest_})), rest_sources, 0.5});
    return std::make_unique<RoutingTeacherClient>(std::move(teachers));
  }
  static TeacherRequest RequestOf(const std::string& source) {
    TeacherRequest request = ExampleRequest(1);
    request.source = source;
    return request;
  }

  FakeTeacher math_, rest_;
};

TEST_F(RoutingTest, TheSourceDecides) {
  auto client = MakeClient({});
  ASSERT_OK(client->Connect(absl::Seconds(20)));
  ASSERT_OK_AND_ASSIGN(const auto math, ScoreOne(client.get(), RequestOf("gsm8k")));
  EXPECT_EQ(math.weight, 2.0);
  EXPECT_EQ(math_.num_calls(), 1);
  EXPECT_EQ(rest_.num_calls(), 0);
  for (const char* source : {"web", ""}) {
    ASSERT_OK_AND_ASSIGN(const auto rest, ScoreOne(client.get(), RequestOf(source)));
    EXPECT_EQ(rest.weight, 0.5);
  }
  EXPECT_EQ(rest_.num_calls(), 2);
}

TEST_F(RoutingTest, ASourceOfNobodyIsNamed) {
  auto client = MakeClient({"web"});
  ASSERT_OK(client->Connect(absl::Seconds(20)));
  EXPECT_OK(ScoreOne(client.get(), RequestOf("web")));
  EXPECT_ERROR(ScoreOne(client.get(), RequestOf("code")), kInvalidArgument,
               "no teacher has the source \"code\"");
}

TEST_F(RoutingTest, LimitsAreTheSmallestAndRevisionsAreJoined) {
  math_.info.set_max_top_k(8);
  rest_.info.set_max_model_len(60);
  rest_.info.set_revision("rev-2");
  rest_.info.set_tokenizer_hash("abc");
  auto client = MakeClient({});
  ASSERT_OK_AND_ASSIGN(const TeacherInfo info, client->Connect(absl::Seconds(20)));
  EXPECT_EQ(info.revision, "math=rev-1,rest=rev-2");
  EXPECT_EQ(info.max_top_k, 8);
  EXPECT_EQ(info.max_model_len, 60);
  EXPECT_EQ(info.tokenizer_hash, "abc");
  EXPECT_TRUE(info.sends_tail);
  EXPECT_TRUE(info.has_stable_scores);
  TeacherInfo all = info;
  LowerLimits({.has_stable_scores = false}, &all);
  EXPECT_FALSE(all.has_stable_scores);
}

TEST_F(RoutingTest, TokenizersMustBeTheSame) {
  math_.info.set_tokenizer_hash("x");
  rest_.info.set_tokenizer_hash("y");
  auto client = MakeClient({});
  EXPECT_ERROR(client->Connect(absl::Seconds(20)), kFailedPrecondition,
               "the teachers math and rest have different tokenizers");
}

TEST_F(RoutingTest, MetricsAreOfEachTeacherAndEndpoint) {
  auto client = MakeClient({});
  ASSERT_OK(client->Connect(absl::Seconds(20)));
  ASSERT_OK(ScoreOne(client.get(), RequestOf("gsm8k")));
  std::map<std::string, double> metrics;
  for (const auto& [name, value] : TeacherMetrics(client->stats())) {
    EXPECT_TRUE(metrics.emplace(name, value).second) << name;
  }
  const std::string math = Concat("teacher/math/127_0_0_1_", math_.port(), "/");
  EXPECT_EQ(metrics.at(math + "attempts"), 1);
  EXPECT_EQ(metrics.at(math + "failures"), 0);
  EXPECT_GT(metrics.at(math + "latency_s"), 0);
  EXPECT_GT(metrics.at(math + "bytes_received"), metrics.at(math + "bytes_sent"));
  EXPECT_EQ(metrics.at(math + "left_out_share"), 0);
  EXPECT_EQ(metrics.at(Concat("teacher/rest/127_0_0_1_", rest_.port(), "/attempts")), 0);
  EXPECT_EQ(metrics.at("teacher/retries"), 0);
}

}  // namespace
}  // namespace taopd::testing
