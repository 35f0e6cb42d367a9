// Connect: what it waits for, and which teachers it refuses.
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

// Runs a hook instead of the n-th pause, so that the world changes between two attempts.
class HookClock final : public Clock {
 public:
  explicit HookClock(std::function<void(int)> on_sleep) : on_sleep_(std::move(on_sleep)) {}
  absl::Time Now() override { return Clock::Real()->Now(); }
  void SleepFor(absl::Duration duration) override {
    on_sleep_(++num_sleeps_);
    Clock::Real()->SleepFor(duration);
  }

 private:
  std::function<void(int)> on_sleep_;
  int num_sleeps_ = 0;
};

TEST(ConnectTest, GivesWhatTheTeacherServes) {
  FakeTeacher teacher;
  teacher.info.set_tokenizer_hash("abc");
  teacher.info.set_supports_temperature(true);
  teacher.Start();
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(FastOptions({&teacher})));
  ASSERT_OK_AND_ASSIGN(const TeacherInfo info, client->Connect(absl::Seconds(20)));
  EXPECT_EQ(info.model_name, "example");
  EXPECT_EQ(info.revision, "rev-1");
  EXPECT_EQ(info.tokenizer_hash, "abc");
  EXPECT_EQ(info.head_vocab_size, 50);
  EXPECT_EQ(info.eos_token_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(info.max_model_len, 64);
  EXPECT_EQ(info.max_top_k, 16);
  EXPECT_TRUE(info.supports_temperature);
  EXPECT_FALSE(client->stats().waiting);
}

TEST(ConnectTest, WaitsForTheTeacher) {
  FakeTeacher teacher;
  teacher.Start();
  const int port = teacher.port();
  const TeacherClientOptions options = FastOptions({&teacher});
  teacher.Stop();
  TeacherClient* observed = nullptr;
  HookClock clock([&](int num_sleeps) {
    EXPECT_TRUE(observed->stats().waiting);
    if (num_sleeps == 2) teacher.Start(port);
  });
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(options, &clock));
  observed = client.get();
  EXPECT_OK(client->Connect(absl::Seconds(20)));
  EXPECT_FALSE(client->stats().waiting);
}

TEST(ConnectTest, GivesUpAtTheTimeout) {
  FakeTeacher teacher;
  teacher.Start();
  const TeacherClientOptions options = FastOptions({&teacher});
  teacher.Stop();
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(options));
  const auto answer = client->Connect(absl::Milliseconds(100));
  EXPECT_ERROR(answer, kUnavailable, "within 100ms");
  EXPECT_ERROR(answer, kUnavailable, options.endpoints[0]);
}

TEST(ConnectTest, OneOfTwoIsEnough) {
  FakeTeacher up, down;
  up.Start();
  down.Start();
  const TeacherClientOptions options = FastOptions({&down, &up});
  down.Stop();
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(options));
  EXPECT_OK(client->Connect(absl::Seconds(20)));
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
}

TEST(ConnectTest, LimitsAreTheSmallest) {
  FakeTeacher a, b;
  a.info.set_max_model_len(1000);
  b.info.set_max_top_k(8);
  b.info.set_supports_temperature(true);
  a.Start();
  b.Start();
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(FastOptions({&a, &b})));
  ASSERT_OK_AND_ASSIGN(const TeacherInfo info, client->Connect(absl::Seconds(20)));
  EXPECT_EQ(info.max_model_len, 64);
  EXPECT_EQ(info.max_top_k, 8);
  EXPECT_FALSE(info.supports_temperature);
}

// Connects to a changed teacher, alone or after a right one.
void ExpectRefused(void (*change)(v1::GetTeacherInfoResponse*), absl::StatusCode code,
                   const std::string& says, bool is_second = false) {
  FakeTeacher right, changed;
  change(&changed.info);
  right.Start();
  changed.Start();
  std::vector<const FakeTeacher*> teachers = {&changed};
  if (is_second) teachers = {&right, &changed};
  ASSERT_OK_AND_ASSIGN(auto client, MakeNetworkTeacherClient(FastOptions(teachers)));
  EXPECT_ERROR(client->Connect(absl::Seconds(20)), code, says);
}

TEST(ConnectTest, TeachersMustBeTheSame) {
  const auto expect_disagreement = [](auto change, const std::string& says) {
    ExpectRefused(change, kFailedPrecondition, says, /*is_second=*/true);
  };
  expect_disagreement([](auto* info) { info->set_revision("rev-2"); },
                      "differ in revision: \"rev-1\"");
  expect_disagreement([](auto* info) { info->set_tokenizer_hash("x"); },
                      "differ in tokenizer_hash");
  expect_disagreement([](auto* info) { info->set_head_vocab_size(51); },
                      "differ in head_vocab_size");
}

TEST(ConnectTest, ARevisionThatWasNotAskedForIsRefused) {
  FakeTeacher a, b;
  a.Start();
  b.info.set_revision("rev-2");
  b.Start();
  TeacherClientOptions options = FastOptions({&a});
  options.revision = "rev-1";
  ASSERT_OK_AND_ASSIGN(auto right, MakeNetworkTeacherClient(options));
  EXPECT_OK(right->Connect(absl::Seconds(20)));
  for (const auto& endpoints : {FastOptions({&b}).endpoints, FastOptions({&a, &b}).endpoints,
                                FastOptions({&b, &a}).endpoints}) {
    options.endpoints = endpoints;
    ASSERT_OK_AND_ASSIGN(auto wrong, MakeNetworkTeacherClient(options));
    EXPECT_ERROR(wrong->Connect(absl::Seconds(20)), kInvalidArgument,
                 b.endpoint() + " serves the revision \"rev-2\" instead of \"rev-1\"");
  }
}

TEST(ConnectTest, StrangeTeachersAreRefusedAtOnce) {
  ExpectRefused([](auto* info) { info->set_protocol_version(2); }, kFailedPrecondition,
                "protocol_version 2");
  ExpectRefused([](auto* info) { info->clear_protocol_version(); }, kFailedPrecondition,
                "protocol_version 0");
  ExpectRefused([](auto* info) { info->clear_revision(); }, kDataLoss, "revision is empty");
  ExpectRefused([](auto* info) { info->set_head_vocab_size(0); }, kDataLoss, "head_vocab_size 0");
  ExpectRefused([](auto* info) { info->set_head_vocab_size(0x80000000u); }, kDataLoss,
                "head_vocab_size 2147483648");
}

TEST(MakeNetworkTeacherClientTest, OptionsAreChecked) {
  TeacherClientOptions good;
  good.endpoints = {"grpc://127.0.0.1:1"};
  EXPECT_OK(MakeNetworkTeacherClient(good));
  const auto expect_refused = [&](auto change, const std::string& says) {
    TeacherClientOptions options = good;
    change(&options);
    EXPECT_ERROR(MakeNetworkTeacherClient(options), kInvalidArgument, says);
  };
  expect_refused([](auto* o) { o->endpoints = {"http://x:1"}; }, "http://x:1");
  expect_refused([](auto* o) { o->request_timeout = absl::ZeroDuration(); }, "request_timeout 0");
  expect_refused([](auto* o) { o->request_timeout = absl::InfiniteDuration(); },
                 "request_timeout inf");
  expect_refused([](auto* o) { o->outage_budget = -absl::Seconds(1); }, "outage_budget -1s");
  expect_refused([](auto* o) { o->initial_backoff = absl::ZeroDuration(); }, "initial_backoff");
  expect_refused([](auto* o) { o->max_backoff = absl::Hours(2); }, "max_backoff 2h");
  expect_refused([](auto* o) { o->max_in_flight_per_endpoint = 0; },
                 "max_in_flight_per_endpoint 0");
  expect_refused([](auto* o) { o->max_message_bytes = int64_t{1} << 31; }, "max_message_bytes");
}

}  // namespace
}  // namespace taopd::testing
