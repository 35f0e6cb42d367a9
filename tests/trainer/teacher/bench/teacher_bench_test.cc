#include "trainer/teacher/bench/teacher_bench.h"

#include <set>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

TeacherLoad SmallLoad() {
  TeacherLoad load;
  load.num_requests = 40;
  load.concurrency = 4;
  load.prompt_tokens = {2, 6};
  load.response_tokens = {3, 9};
  load.vocab_size = 50;
  load.top_k = 4;
  return load;
}

class TeacherBenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    teacher_.Start();
    TeacherClientOptions options = FastOptions({&teacher_});
    options.retry = false;
    client_ = *MakeNetworkTeacherClient(options);
    ASSERT_OK(client_->Connect(absl::Seconds(20)));
  }
  FakeTeacher teacher_;
  std::unique_ptr<TeacherClient> client_;
};

TEST_F(TeacherBenchTest, ClosedLoopKeepsItsConcurrency) {
  absl::Mutex mutex;
  std::set<size_t> lengths;
  teacher_.SetHandler([&](FakeCall call) {
    EXPECT_LE(client_->stats().in_flight, 4);
    absl::MutexLock lock(&mutex);
    lengths.insert(call.request->token_ids().size());
    teacher_.AnswerRight(call);
  });
  const TeacherLoadResult result = RunTeacherLoad(SmallLoad(), client_.get());
  EXPECT_EQ(result.num_requests(), 40);
  EXPECT_EQ(result.latencies.size(), 40u);
  EXPECT_TRUE(result.errors.empty());
  EXPECT_EQ(teacher_.num_calls(), 40);
  EXPECT_GE(*lengths.begin(), 5u);
  EXPECT_LE(*lengths.rbegin(), 15u);
  EXPECT_GT(lengths.size(), 3u);
  EXPECT_GT(result.num_scored_tokens, 40 * 3 - 1);
  EXPECT_GT(result.num_tokens, result.num_scored_tokens);
  EXPECT_LE(result.Percentile(0.5), result.Percentile(0.99));
  EXPECT_EQ(result.Percentile(1), result.latencies.back());
}

TEST_F(TeacherBenchTest, OpenLoopDoesNotWaitForAnswers) {
  TeacherLoad load = SmallLoad();
  load.num_requests = 20;
  load.requests_per_s = 1000;
  teacher_.Hold();
  std::vector<FakeCall> held;
  std::thread answers([&] {
    held = teacher_.TakeHeld(20);  // all arrive though none is answered
    for (const FakeCall& call : held) teacher_.AnswerRight(call);
  });
  const TeacherLoadResult result = RunTeacherLoad(load, client_.get());
  answers.join();
  EXPECT_EQ(held.size(), 20u);
  EXPECT_EQ(result.latencies.size(), 20u);
}

TEST_F(TeacherBenchTest, ErrorsAreCountedByStatus) {
  std::atomic<int> num_calls = 0;
  teacher_.SetHandler([&](FakeCall call) {
    if (num_calls++ % 2 == 0) {
      return call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "full"});
    }
    teacher_.AnswerRight(call);
  });
  const TeacherLoadResult result = RunTeacherLoad(SmallLoad(), client_.get());
  EXPECT_EQ(result.errors.at("RESOURCE_EXHAUSTED"), 20);
  EXPECT_EQ(result.latencies.size(), 20u);
  EXPECT_NE(result.error_examples.at("RESOURCE_EXHAUSTED").find("full"), std::string::npos);
}

}  // namespace
}  // namespace taopd::testing
