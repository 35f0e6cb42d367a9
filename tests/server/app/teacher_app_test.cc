// The life cycle with a fake engine: each test is a process of its own under ctest, so the signals
// it sends to itself reach its own server only.
#include "server/app/teacher_app.h"

#include <absl/synchronization/notification.h>
#include <httplib.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/model/device_failure.h"
#include "tests/server/fake_engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Holds the server's output, and waits for the line that names the ports.
class PortLine : public std::stringbuf {
 public:
  int sync() override {
    if (!listening_.HasBeenNotified()) listening_.Notify();
    return 0;
  }
  int WaitForPort(const std::string& name) {
    listening_.WaitForNotification();
    const std::string line = str(), before = name + "=127.0.0.1:";
    const size_t at = line.find(before);
    EXPECT_NE(at, std::string::npos) << line;
    return std::stoi(line.substr(at + before.size()));
  }

 private:
  absl::Notification listening_;
};

// Blocks SIGTERM before any thread starts, so that the server's thread takes it.
struct SignalBlock {
  SignalBlock() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }
};

// Makes this process's listener on the port fail for good.
void BreakListener(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    sockaddr_in address{};
    socklen_t listens_size = sizeof(listens), size = sizeof(address);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) != 0 || listens == 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        address.sin_family != AF_INET || ntohs(address.sin_port) != port) {
      continue;
    }
    ASSERT_EQ(::shutdown(fd, SHUT_RDWR), 0);
    return;
  }
  FAIL() << "nobody listens on " << port;
}

class TeacherAppTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.model = "fake";
    options_.port = options_.grpc_port = 0;
    options_.ready_file = dir_.File("ready.json");
    options_.shutdown_timeout = 20;
  }
  void Start(ModelLoader load) {
    load_ = std::move(load);
    server_ = std::thread([this] {
      std::ostream out(&line_);
      exit_code_ = RunTeacher(options_, load_, out);
    });
    http_port_ = line_.WaitForPort("http");
    grpc_port_ = line_.WaitForPort("grpc");
    client_ = std::make_unique<httplib::Client>("127.0.0.1", http_port_);
    client_->set_read_timeout(20);
  }
  // Starts with the fake model and waits until it is healthy.
  void Serve() {
    Start([this] { return fake_.model; });
    WaitUntilHealthy();
  }
  void WaitUntilHealthy() {
    for (;;) {
      const auto health = client_->Get("/health");
      if (health && health->status == 200) return;
      std::this_thread::yield();
    }
  }
  // Returns the status of a completion of another client, or 0 if the connection was closed.
  int Complete() {
    httplib::Client client("127.0.0.1", http_port_);
    client.set_read_timeout(20);
    const auto answer = client.Post("/v1/completions", "{\"prompt\":[1]}", "application/json");
    return answer ? answer->status : 0;
  }
  int WaitForEnd() {
    server_.join();
    return exit_code_;
  }
  int Terminate() {
    ::kill(::getpid(), SIGTERM);
    return WaitForEnd();
  }

  const SignalBlock signal_block_;  // first: the fake engine has a thread
  TempDir dir_;
  TeacherOptions options_;
  ModelLoader load_;
  PortLine line_;
  std::thread server_;
  int exit_code_ = -1;
  int http_port_ = 0, grpc_port_ = 0;
  std::unique_ptr<httplib::Client> client_;
  FakeModel fake_ = MakeFakeModel();
};

TEST_F(TeacherAppTest, ListensWhileLoadingThenServesThenDrains) {
  absl::Notification may_load;
  Start([&]() -> absl::StatusOr<std::shared_ptr<ServedModel>> {
    may_load.WaitForNotification();
    return fake_.model;
  });
  EXPECT_EQ(client_->Get("/health")->status, 503);
  EXPECT_FALSE(std::filesystem::exists(options_.ready_file));
  may_load.Notify();
  WaitUntilHealthy();
  EXPECT_EQ(Complete(), 200);
  EXPECT_EQ(Terminate(), kExitOk);
  const auto ready = nlohmann::json::parse(ReadFile(options_.ready_file));
  EXPECT_EQ(ready["pid"], ::getpid());
  EXPECT_EQ(ready.size(), 3u);
  EXPECT_GT(ready["http_port"], 0);
  EXPECT_GT(ready["grpc_port"], 0);
  EXPECT_FALSE(client_->Get("/health"));  // nobody listens
}

TEST_F(TeacherAppTest, AcceptedWorkIsAnsweredBeforeTheEnd) {
  Serve();
  fake_.engine->Hold(true);
  std::thread call([&] { EXPECT_EQ(Complete(), 200); });
  fake_.engine->WaitForQueued(1);
  ::kill(::getpid(), SIGTERM);
  // Draining has begun when health fails; a new request is then refused.
  while (client_->Get("/health")->status == 200) std::this_thread::yield();
  ::kill(::getpid(), SIGTERM);  // the second of a pair
  EXPECT_EQ(Complete(), 503);
  fake_.engine->Hold(false);
  call.join();
  EXPECT_EQ(WaitForEnd(), kExitOk);
}

TEST_F(TeacherAppTest, DrainDelayIsUnreadyButServes) {
  options_.drain_delay = 2;  // the requests below arrive within it
  Serve();
  EXPECT_EQ(client_->Get("/ready")->status, 200);
  ::kill(::getpid(), SIGTERM);
  while (client_->Get("/ready")->status == 200) std::this_thread::yield();
  EXPECT_EQ(client_->Get("/health")->status, 200);
  EXPECT_EQ(Complete(), 200);
  EXPECT_EQ(WaitForEnd(), kExitOk);
}

TEST_F(TeacherAppTest, AWrongCanaryMakesTheServerUnreadyUntilItIsRight) {
  options_.canary_interval = 0.001;
  fake_.engine->FailWith(Internal("the logits of position 3 are not finite"));
  Serve();
  const auto ready = client_->Get("/ready");
  EXPECT_EQ(ready->status, 503);
  EXPECT_THAT(ready->body, HasSubstr("position 3 are not finite"));
  EXPECT_EQ(Complete(), 503);
  EXPECT_FALSE(std::filesystem::exists(options_.ready_file));
  fake_.engine->FailWith(absl::OkStatus());
  while (!std::filesystem::exists(options_.ready_file)) std::this_thread::yield();
  EXPECT_EQ(client_->Get("/ready")->status, 200);
  // It is scored again when the server is ready.
  fake_.engine->FailWith(Internal("the logits of position 5 are not finite"));
  while (client_->Get("/ready")->status == 200) std::this_thread::yield();
  fake_.engine->FailWith(absl::OkStatus());
  while (client_->Get("/ready")->status != 200) std::this_thread::yield();
  EXPECT_EQ(Terminate(), kExitOk);
}

TEST_F(TeacherAppTest, SighupOpensTheAccessLogAgain) {
  options_.access_log = dir_.File("access.jsonl");
  Serve();
  std::filesystem::rename(options_.access_log, options_.access_log + ".1");
  ::kill(::getpid(), SIGHUP);
  while (!std::filesystem::exists(options_.access_log)) client_->Get("/health");
  EXPECT_EQ(Terminate(), kExitOk);
  EXPECT_THAT(ReadFile(options_.access_log + ".1"), HasSubstr("GET /health"));
}

TEST_F(TeacherAppTest, AnHttpListenerThatFailsForGoodEndsTheProcess) {
  options_.self_probe_interval = 0;
  Serve();
  BreakListener(http_port_);
  EXPECT_EQ(WaitForEnd(), kExitInternal);
}

TEST_F(TeacherAppTest, AGrpcListenerThatFailsForGoodEndsTheProcess) {
  options_.self_probe_interval = 0;
  Serve();
  BreakListener(grpc_port_);
  EXPECT_EQ(WaitForEnd(), kExitInternal);
}

TEST_F(TeacherAppTest, AFailedDeviceEndsTheProcess) {
  Serve();
  fake_.engine->SetStats({.device_failed = true});
  EXPECT_EQ(WaitForEnd(), kExitInternal);
}

TEST_F(TeacherAppTest, ADeviceThatRefusesAllWorkHasItsOwnExitCode) {
  Serve();
  fake_.engine->SetStats({.device_failed = true, .device_kernel = "paged attention"});
  EXPECT_EQ(WaitForEnd(), kExitDevice);
}

TEST_F(TeacherAppTest, DrainEndsAtItsDeadline) {
  options_.shutdown_timeout = 0.2;
  Serve();
  fake_.engine->Hold(true);
  std::vector<std::thread> calls;
  for (int i = 0; i < 100; ++i) calls.emplace_back([&] { EXPECT_EQ(Complete(), 503); });
  fake_.engine->WaitForQueued(100);
  EXPECT_EQ(Terminate(), kExitOk);
  for (std::thread& call : calls) call.join();
}

TEST_F(TeacherAppTest, SignalWhileLoadingEndsAtOnce) {
  absl::Notification never, load_left;
  Start([&]() -> absl::StatusOr<std::shared_ptr<ServedModel>> {
    never.WaitForNotification();
    load_left.Notify();
    return Unavailable("late");
  });
  EXPECT_EQ(Terminate(), kExitOk);
  EXPECT_FALSE(std::filesystem::exists(options_.ready_file));
  never.Notify();
  load_left.WaitForNotification();
}

TEST_F(TeacherAppTest, FailuresToLoadHaveExitCodes) {
  const auto exit_code_of = [this](const ModelLoader& load) {
    std::ostringstream out;
    return RunTeacher(options_, load, out);
  };
  const std::pair<absl::Status, int> cases[] = {
      {NotFound("config.json"), kExitData},
      {ResourceExhausted("the memory plan takes 30.6 GiB"), kExitOutOfMemory},
      {DeviceFailure("scoring head: the kernel hangs"), kExitDevice},
  };
  for (const auto& [status, exit_code] : cases)
    EXPECT_EQ(exit_code_of([&status = status] { return status; }), exit_code) << status;
  EXPECT_EQ(exit_code_of([]() -> absl::Status { throw std::runtime_error("boom"); }),
            kExitInternal);
  fake_.engine->FailWith(ResourceExhausted("the first step needs more memory"));
  EXPECT_EQ(exit_code_of([this] { return fake_.model; }), kExitOutOfMemory);
  options_.trace = dir_.File("missing/trace.json");
  EXPECT_EQ(exit_code_of([this] { return fake_.model; }), kExitUsage);
}

TEST_F(TeacherAppTest, AFirstStepThatNeverReturnsEndsTheProcess) {
  options_.stall_timeout = 0.1;
  fake_.engine->Hold(true);
  std::ostringstream out;
  // The server alone owns the model: its metrics see the end of the canary's request.
  const auto load = [this] { return std::move(fake_.model); };
  EXPECT_EQ(RunTeacher(options_, load, out), kExitInternal);
}

}  // namespace
}  // namespace taopd::testing
