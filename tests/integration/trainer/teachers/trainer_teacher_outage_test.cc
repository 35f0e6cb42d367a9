// Tests of teachers that die, hang, lie or change in the middle of a step. With another endpoint
// the run continues; with a single one it waits. In both cases the weights are those of an
// undisturbed run.
#include <absl/synchronization/notification.h>

#include <atomic>

#include "tests/integration/trainer/control_client.h"
#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/http_listener.h"

namespace taopd::testing {
namespace {

enum class Misbehavior { kNone, kSlow, kGarbage, kLie, kAnotherRevision, kOtherWeights };

// A proxy in front of a real teacher that misbehaves on demand.
class MisbehavingProxy {
 public:
  explicit MisbehavingProxy(int teacher_port) : teacher_port_(teacher_port) {
    const auto forward = [this](const httplib::Request& request, httplib::Response& response) {
      Forward(request, &response);
    };
    server_.Get("/v1/models", forward);
    server_.Post("/v1/completions", forward);
    listener_.emplace(&server_, 128);
  }
  ~MisbehavingProxy() { over_.Notify(); }

  std::string endpoint() const { return "vllm+http://" + listener_->address(); }
  // Misbehaves from the `after`-th scoring request on.
  void Misbehave(Misbehavior how, int after) {
    how_ = how;
    num_left_ = after;
  }
  int num_misbehaved() const { return num_misbehaved_; }

 private:
  void Forward(const httplib::Request& request, httplib::Response* response) {
    httplib::Client teacher("127.0.0.1", teacher_port_);
    teacher.set_tcp_nodelay(true);
    const auto reply = request.method == "GET"
                           ? teacher.Get(request.path)
                           : teacher.Post(request.path, request.body, "application/json");
    if (!reply) {
      response->status = 502;
      return;
    }
    response->status = reply->status;
    const bool is_good = request.method == "GET" || how_ == Misbehavior::kNone || --num_left_ >= 0;
    response->set_content(is_good ? reply->body : Spoil(reply->body), "application/json");
  }

  std::string Spoil(const std::string& body) {
    ++num_misbehaved_;
    if (how_ == Misbehavior::kGarbage) return "\x16\x03\x01{" + body.substr(0, body.size() / 2);
    if (how_ == Misbehavior::kSlow) over_.WaitForNotification();
    auto reply = nlohmann::ordered_json::parse(body);
    if (how_ == Misbehavior::kAnotherRevision) reply["system_fingerprint"] = "another";
    if (how_ == Misbehavior::kLie || how_ == Misbehavior::kOtherWeights) {
      const double factor = how_ == Misbehavior::kLie ? 0.5 : 2;  // 0.5 makes a sum above 1
      for (auto& position : reply["choices"][0]["prompt_logprobs"]) {
        if (position.is_null()) continue;
        for (auto& entry : position) entry["logprob"] = factor * entry["logprob"].get<double>();
      }
    }
    return reply.dump();
  }

  const int teacher_port_;
  absl::Notification over_;
  std::atomic<Misbehavior> how_ = Misbehavior::kNone;
  std::atomic<int> num_left_ = 0;
  std::atomic<int> num_misbehaved_ = 0;
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

class TeacherOutageTest : public TrainerTest {
 protected:
  // Trains without a disturbance. The other runs are compared with its weights.
  void TrainWhole(const std::string& endpoints) {
    ASSERT_TRUE(Trains(Settings("whole", endpoints)));
  }
  Strings Settings(const std::string& run, const std::string& endpoints) {
    const Strings settings = {Endpoints(endpoints),   "trainer.total_steps=12", "eval.measure=none",
                              "trainer.save_every=1", "teacher.timeout_s=1",    RunDir(run)};
    return Joined(settings, more_);
  }
  // Starts a run and pauses it between its first steps. So it cannot end before the test has
  // changed its teachers, and no request is in flight, whose time limit would pass meanwhile.
  void StartPaused(const std::string& run, const std::string& endpoints) {
    trainer_.emplace(Command(TrainArguments(Settings(run, endpoints))), dir_.File(run + ".log"));
    control_.emplace(ControlClient::AwaitPort(*trainer_));
    ASSERT_EQ(control_->Post("/pause"), 202);
    ASSERT_TRUE(control_->Reaches("paused")) << trainer_->Output();
  }
  void Continue() { EXPECT_EQ(control_->Post("/resume"), 202); }
  void ExpectSameAsWhole(const std::string& run) {
    EXPECT_EQ(trainer_->Wait(absl::Seconds(120)), 0) << trainer_->Output();
    EXPECT_EQ(WeightsOf(run), WeightsOf("whole")) << run;
  }
  double EndpointMetric(const std::string& run, int port, const std::string& name) {
    return LastMetric(run, Concat("teacher/127_0_0_1_", port, "/", name));
  }

  Strings more_;  // settings
  std::optional<Process> trainer_;
  std::optional<ControlClient> control_;
};

// One of three teachers is killed and comes back as another model, and one is stopped.
TEST_F(TeacherOutageTest, OthersAreKilledReplacedAndStopped) {
  ServingTeacher stays(stories_), stopped(stories_);
  std::optional<ServingTeacher> replaced(stories_);
  const int port = replaced->grpc_port();
  const std::string changed = dir_.File("changed");
  std::filesystem::copy(stories_, changed);
  Damage(changed + "/model.safetensors");
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));

  ASSERT_NO_FATAL_FAILURE(StartPaused(
      "run", Concat(replaced->endpoint(), ",", stays.endpoint(), ",", stopped.endpoint())));
  stopped.Signal(SIGSTOP);
  replaced->Kill();
  replaced.emplace(changed, Strings(), port);
  Continue();
  ExpectSameAsWhole("run");
  EXPECT_THAT(
      trainer_->Output(),
      HasSubstr(Concat("is another teacher and is left out endpoint=grpc://127.0.0.1:", port)));
  EXPECT_THAT(trainer_->Output(),
              HasSubstr(Concat("teacher endpoint fails endpoint=", stopped.endpoint())));
  for (const int wrong : {port, stopped.grpc_port()}) {
    EXPECT_GT(EndpointMetric("run", wrong, "left_out_share"), 0);
    EXPECT_GT(EndpointMetric("run", wrong, "failures"), 0);
  }
  EXPECT_EQ(EndpointMetric("run", stays.grpc_port(), "failures"), 0);
}

// One of five endpoints is slow, one sends garbage, one lies and one reports that it has changed.
TEST_F(TeacherOutageTest, OthersAreSlowOrLie) {
  std::string endpoints = teacher().vllm_endpoint();
  ASSERT_NO_FATAL_FAILURE(TrainWhole(endpoints));
  std::vector<std::unique_ptr<MisbehavingProxy>> proxies;
  for (const Misbehavior how : {Misbehavior::kSlow, Misbehavior::kGarbage, Misbehavior::kLie,
                                Misbehavior::kAnotherRevision}) {
    proxies.push_back(std::make_unique<MisbehavingProxy>(teacher().http_port()));
    // Connect requests nine scores: the probe, and the canary twice.
    proxies.back()->Misbehave(how, /*after=*/9 + 6);
    endpoints += Concat(",\"", proxies.back()->endpoint(), "\"");
  }
  ASSERT_TRUE(Trains(Settings("run", endpoints)));
  EXPECT_EQ(WeightsOf("run"), WeightsOf("whole"));
  for (const auto& proxy : proxies) {
    EXPECT_GT(proxy->num_misbehaved(), 0);
    EXPECT_THAT(output_, HasSubstr(Concat("endpoint=", proxy->endpoint())));
  }
}

// Scores that differ between two servers of one name would not be stored.
TEST_F(TeacherOutageTest, ScoreRefusesServersThatDiffer) {
  MisbehavingProxy other(teacher().http_port());
  other.Misbehave(Misbehavior::kOtherWeights, /*after=*/0);
  const auto score = [&](const std::string& second) {
    return Strings{"score",
                   "--input",
                   dir_.File("pairs.jsonl"),
                   "--teacher",
                   Concat("vllm+http://127.0.0.1:", teacher().http_port()),
                   "--teacher",
                   second,
                   "--cache-dir",
                   dir_.File("cache")};
  };
  ExpectFails(score(other.endpoint()), 64, "or differ between its endpoints");
  EXPECT_THAT(output_, Not(HasSubstr("from_teacher")));
  other.Misbehave(Misbehavior::kNone, 0);
  ASSERT_TRUE(Runs(score(other.endpoint())));
  EXPECT_THAT(output_, HasSubstr("from_teacher\t24\n"));
}

// A server whose keys are replaced refuses the run's key. Another one takes over; without another,
// the run saves and ends, and continues once the key is accepted.
TEST_F(TeacherOutageTest, AKeyIsRefusedDuringTheRun) {
  const std::string keys = dir_.File("keys");
  WriteFile(keys, "the-key\n");
  setenv("TAOPD_TEST_TEACHER_KEY", "the-key", 1);
  more_ = {"teacher.api_key_env=TAOPD_TEST_TEACHER_KEY"};
  ServingTeacher stays(stories_, {"--api-key", "the-key"});
  ServingTeacher changes(stories_, {"--api-key-file", keys});
  const auto replace_key = [&](const std::string& key) {
    WriteFile(keys, key + "\n");
    const auto last_time = [&] { return changes.Errors().rfind("were reopened"); };
    const size_t before = last_time();
    changes.Signal(SIGHUP);
    EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] { return last_time() != before; }));
  };
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));
  const std::string refused =
      Concat("refuses the API key and is left out endpoint=", changes.endpoint());

  ASSERT_NO_FATAL_FAILURE(StartPaused("run", Concat(changes.endpoint(), ",", stays.endpoint())));
  replace_key("another-key");
  Continue();
  ExpectSameAsWhole("run");
  EXPECT_THAT(trainer_->Output(), HasSubstr(refused));

  replace_key("the-key");
  ASSERT_NO_FATAL_FAILURE(StartPaused("alone", changes.endpoint()));
  replace_key("another-key");
  Continue();
  EXPECT_EQ(trainer_->Wait(), 69) << trainer_->Output();
  EXPECT_THAT(trainer_->Output(), HasSubstr(refused));
  EXPECT_LT(NewestCheckpoint("alone"), 12);
  replace_key("the-key");
  trainer_.emplace(
      Command(TrainArguments(Settings("alone", changes.endpoint()), {"--resume=auto"})),
      dir_.File("alone.log"));
  ExpectSameAsWhole("alone");
}

TEST_F(TeacherOutageTest, TheOnlyTeacherStopsForAWhile) {
  StartTeacher(stories_);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(teacher().endpoint()));
  ASSERT_NO_FATAL_FAILURE(StartPaused("run", teacher().endpoint()));
  teacher().Signal(SIGSTOP);
  Continue();
  EXPECT_TRUE(AwaitOutput("teacher endpoint fails", *trainer_));
  teacher().Signal(SIGCONT);
  ExpectSameAsWhole("run");
  EXPECT_GT(LastMetric("run", "teacher/retries"), 0);
}

}  // namespace
}  // namespace taopd::testing
