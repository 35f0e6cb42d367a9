#include "trainer/teacher/cache/cached_teacher_client.h"

#include <absl/synchronization/notification.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"
#include "tests/trainer/teacher/scripted_teacher.h"
#include "trainer/teacher/cache/score_entry.h"

namespace taopd::testing {
namespace {

constexpr int64_t kRoom = int64_t{1} << 30;

class CachedTeacherTest : public ::testing::Test {
 protected:
  void SetUp() override { teacher_.Start(); }
  std::unique_ptr<ScoreCache> OpenCache() {
    auto cache = ScoreCache::Open(dir_.File("cache"), kRoom);
    EXPECT_OK(cache);
    return *std::move(cache);
  }
  // Without a teacher, the client is not connected.
  std::unique_ptr<CachedTeacherClient> MakeClient(bool with_teacher,
                                                  const std::string& revision = "") {
    const TeacherClientOptions options = FastOptions({&teacher_});
    auto teacher = MakeNetworkTeacherClient(options);
    EXPECT_OK(teacher);
    if (!with_teacher) teacher->reset();
    auto client = std::make_unique<CachedTeacherClient>(OpenCache(), options.endpoints,
                                                        *std::move(teacher), revision);
    if (with_teacher) EXPECT_OK(client->Connect(absl::Seconds(20)));
    return client;
  }

  TempDir dir_;
  FakeTeacher teacher_;
};

TEST_F(CachedTeacherTest, TheTeacherIsAskedOnce) {
  auto client = MakeClient(true);
  for (int round = 0; round < 3; ++round) {
    const auto answers = ScoreAll(client.get(), ExampleRequests(50));
    for (int i = 0; i < 50; ++i) {
      ASSERT_OK(answers[i]);
      EXPECT_EQ(answers[i]->ids, ExampleScores(ExampleRequest(i), ExampleInfo()).ids);
      EXPECT_EQ(answers[i]->revision, "rev-1");
    }
  }
  EXPECT_EQ(teacher_.num_calls(), 50);
  const TeacherClientStats stats = client->stats();
  EXPECT_EQ(stats.requests, 150u);
  EXPECT_EQ(stats.cache_hits, 100u);
  EXPECT_EQ(stats.cache_misses, 50u);
  EXPECT_EQ(stats.failures, 0u);
  EXPECT_EQ(stats.queued, 0);
}

// A teacher whose scores are all `value`, and what it says of itself.
std::unique_ptr<TeacherClient> FixedTeacher(const std::string& canary, bool is_stable, float value,
                                            int* num_asked) {
  TeacherInfo info = ExampleInfo();
  info.canary = canary;
  info.has_stable_scores = is_stable;
  return std::make_unique<ScriptedTeacher>(
      [=](TeacherRequest request, ScriptedTeacher::Done done) {
        ++*num_asked;
        TeacherScores scores = ExampleScores(request, ExampleInfo());
        scores.sampled_log_probs.assign(scores.sampled_log_probs.size(), value);
        done(std::move(scores));
      },
      info);
}

// Servers of one name and revision share entries only if their canaries are the same.
TEST_F(CachedTeacherTest, OtherWeightsUnderOneNameShareNothing) {
  const auto score = [&](const std::string& canary, bool is_stable, float value, int* num_asked) {
    CachedTeacherClient client(OpenCache(), {"vllm+http://127.0.0.1:1"},
                               FixedTeacher(canary, is_stable, value, num_asked));
    EXPECT_OK(client.Connect(absl::Seconds(1)));
    const auto scores = ScoreOne(&client, ExampleRequest(0));
    EXPECT_OK(scores);
    EXPECT_EQ(scores->revision, ExampleInfo().revision);
    return scores->sampled_log_probs[0];
  };
  int num_asked = 0;
  EXPECT_EQ(score("a", true, -1, &num_asked), -1);
  EXPECT_EQ(score("a", true, -9, &num_asked), -1) << "from the cache";
  EXPECT_EQ(num_asked, 1);
  EXPECT_EQ(score("b", true, -2, &num_asked), -2);
  EXPECT_EQ(score("", false, -3, &num_asked), -3) << "nothing is read";
  EXPECT_EQ(score("", false, -4, &num_asked), -4) << "and nothing is stored";
  EXPECT_EQ(score("a", true, -9, &num_asked), -1);
  EXPECT_EQ(num_asked, 4);
}

// The slower attempt of a hedged request is in flight after the request has its answer.
TEST_F(CachedTeacherTest, AttemptsWithoutARequestLeaveTheQueueEmpty) {
  class HedgingTeacher final : public TeacherClient {
   public:
    absl::StatusOr<TeacherInfo> Connect(absl::Duration) override { return ExampleInfo(); }
    void Score(TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)>) override {}
    TeacherClientStats stats() const override { return {.in_flight = 1}; }
  };
  const CachedTeacherClient client(OpenCache(), {"grpc://127.0.0.1:1"},
                                   std::make_unique<HedgingTeacher>());
  EXPECT_EQ(client.stats().in_flight, 1);
  EXPECT_EQ(client.stats().queued, 0);
}

TEST_F(CachedTeacherTest, ARunIsReplayedWithoutATeacher) {
  {
    auto client = MakeClient(true);
    for (const auto& answer : ScoreAll(client.get(), ExampleRequests(10))) ASSERT_OK(answer);
  }
  teacher_.Stop();
  auto client = MakeClient(false);
  ASSERT_OK_AND_ASSIGN(const TeacherInfo info, client->Connect(absl::Seconds(20)));
  EXPECT_EQ(info.revision, "rev-1");
  for (const auto& answer : ScoreAll(client.get(), ExampleRequests(10))) EXPECT_OK(answer);
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(11)), kFailedPrecondition,
               "request \"r11\": its scores are not in the cache");
  EXPECT_OK(MakeClient(false, "rev-1")->Connect(absl::Seconds(20)));
  EXPECT_ERROR(MakeClient(false, "rev-2")->Connect(absl::Seconds(20)), kInvalidArgument,
               "the revision \"rev-1\" instead of \"rev-2\"");
  CachedTeacherClient other(OpenCache(), {teacher_.endpoint()}, nullptr, "", "z");
  EXPECT_ERROR(other.Connect(absl::Seconds(20)), kFailedPrecondition, "with teacher.model = z");
}

TEST_F(CachedTeacherTest, AnUnknownTeacherIsNamed) {
  auto client = MakeClient(false);
  EXPECT_ERROR(client->Connect(absl::Seconds(20)), kFailedPrecondition, teacher_.endpoint());
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), kFailedPrecondition,
               "Score before Connect");
}

TEST_F(CachedTeacherTest, ErrorsAreNotStored) {
  auto client = MakeClient(true);
  TeacherRequest bad = ExampleRequest(1);
  bad.score_start = 0;
  EXPECT_ERROR(ScoreOne(client.get(), bad), kInvalidArgument, "score_start 0");
  teacher_.SetHandler([](FakeCall call) {
    call.finish({grpc::StatusCode::INVALID_ARGUMENT, "as told"});
  });
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), kInvalidArgument, "as told");
  teacher_.SetHandler(nullptr);
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
}

TEST_F(CachedTeacherTest, DestructionAnswersEverything) {
  for (int round = 0; round < 20; ++round) {
    auto client = MakeClient(true);
    if (round % 2 == 0) {
      teacher_.Hold();
    } else {
      teacher_.SetHandler(nullptr);
    }
    constexpr int kCount = 100;
    std::atomic<int> num_answers = 0;
    for (const TeacherRequest& request : ExampleRequests(kCount)) {
      client->Score(request, [&](absl::StatusOr<TeacherScores> scores) {
        EXPECT_TRUE(scores.ok() || absl::IsCancelled(scores.status())) << scores.status();
        ++num_answers;
      });
    }
    client.reset();
    EXPECT_EQ(num_answers, kCount);
    for (const auto& call : teacher_.TakeHeld(0)) teacher_.AnswerRight(call);
  }
}

// The teacher's client goes while a lookup reads the disk.
TEST_F(CachedTeacherTest, ALateLookUpIsCancelled) {
  absl::Notification teacher_is_gone, is_answered;
  auto teacher = std::make_unique<ScriptedTeacher>(
      [end = std::shared_ptr<void>(nullptr, [&](void*) { teacher_is_gone.Notify(); })](
          const TeacherRequest& request, const ScriptedTeacher::Done& done) {
        done(ExampleScores(request, ExampleInfo()));
      },
      ExampleInfo());
  auto client = std::make_unique<CachedTeacherClient>(
      OpenCache(), std::vector<std::string>{"grpc://127.0.0.1:1"}, std::move(teacher));
  ASSERT_OK(client->Connect(absl::Seconds(1)));
  // The entry is a pipe, whose reader waits for a writer.
  const std::string key = ScoreKey(ExampleRequest(1), ExampleInfo().Identity());
  const std::string folder = dir_.File("cache/" + key.substr(0, 2));
  const std::string entry = folder + "/" + key.substr(2);
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  ASSERT_EQ(::mkfifo(entry.c_str(), 0600), 0);
  absl::Status status;
  client->Score(ExampleRequest(1), [&](const absl::StatusOr<TeacherScores>& scores) {
    status = scores.status();
    is_answered.Notify();
  });
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(2)));  // the first lookup has begun before
  std::thread writer([&] {
    teacher_is_gone.WaitForNotification();
    int fd = -1;
    while (!is_answered.HasBeenNotified() && fd < 0) {
      std::this_thread::yield();
      fd = ::open(entry.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);  // fails without a reader
    }
    if (fd >= 0) ::close(fd);
  });
  client.reset();
  writer.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace taopd::testing
