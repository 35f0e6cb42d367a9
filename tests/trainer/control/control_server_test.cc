// The control server over real sockets.
#include "trainer/control/control_server.h"

#include <absl/strings/escaping.h>
#include <absl/synchronization/notification.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <cctype>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "common/io/sha256.h"
#include "proto/taopd/v1/trainer.grpc.pb.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using StringOr = absl::StatusOr<std::string>;

class ControlServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, ControlServer::Start({}, &state_, Pages()));
    ASSERT_GT(server_->grpc_port(), 0);
    ASSERT_GT(server_->http_port(), 0);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    channel_ = grpc::CreateCustomChannel(Concat("127.0.0.1:", server_->grpc_port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Trainer::NewStub(channel_);
  }
  ControlPages Pages() {
    ControlPages pages;
    pages.prometheus_text = [] { return "taopd_x 1\n"; };
    pages.report_html = [this]() -> absl::StatusOr<std::string> {
      ++num_reports_;
      if (num_reports_ > 1) return NotFound("metrics.jsonl");
      return std::string("<html>the report</html>");
    };
    return pages;
  }
  static ControlPages ThrowingPages() {
    ControlPages pages;
    pages.prometheus_text = []() -> std::string { throw std::runtime_error("secret"); };
    return pages;
  }
  // The answer to a POST with the header that says that it is meant.
  httplib::Result Post(int port, const std::string& path, httplib::Headers headers = {}) {
    headers.emplace("X-Taopd-Control", "1");
    return httplib::Client("127.0.0.1", port).Post(path, headers, "", "text/plain");
  }
  httplib::Result Get(const std::string& path) {
    return httplib::Client("127.0.0.1", server_->http_port()).Get(path.c_str());
  }
  grpc::Status Save(std::string* path, absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    v1::SaveCheckpointResponse reply;
    const grpc::Status status = stub_->SaveCheckpoint(&context, {}, &reply);
    *path = reply.path();
    return status;
  }

  RunState state_;
  std::atomic<int> num_reports_ = 0;
  std::unique_ptr<ControlServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Trainer::Stub> stub_;
};

TEST_F(ControlServerTest, StatusOverGrpc) {
  state_.Update([](RunStatus& status) {
    status = {"run-1",
              TrainerPhase::kWaitingForTeacher,
              12,
              100,
              {{"loss/mean", 0.25}},
              "/run/step-000010",
              77.5};
  });
  grpc::ClientContext context;
  v1::GetStatusResponse reply;
  ASSERT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());
  EXPECT_EQ(reply.run_name(), "run-1");
  EXPECT_EQ(reply.state(), v1::TRAINER_STATE_WAITING_FOR_TEACHER);
  EXPECT_EQ(reply.step(), 12u);
  EXPECT_EQ(reply.total_steps(), 100u);
  EXPECT_EQ(reply.metrics().size(), 1u);
  EXPECT_EQ(reply.metrics().at("loss/mean"), 0.25);
  EXPECT_EQ(reply.last_checkpoint(), "/run/step-000010");
  EXPECT_EQ(reply.eta_seconds(), 77.5);
}

TEST_F(ControlServerTest, EveryPhaseHasItsState) {
  for (int phase = 0; phase <= static_cast<int>(TrainerPhase::kFinished); ++phase) {
    state_.Update([&](RunStatus& status) { status.phase = static_cast<TrainerPhase>(phase); });
    grpc::ClientContext context;
    v1::GetStatusResponse reply;
    ASSERT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());
    std::string name = "TRAINER_STATE_";
    for (const char* c = TrainerPhaseName(static_cast<TrainerPhase>(phase)); *c != 0; ++c) {
      name += static_cast<char>(std::toupper(*c));
    }
    EXPECT_EQ(v1::TrainerState_Name(reply.state()), name);
  }
}

TEST_F(ControlServerTest, StatusOverHttpIsJson) {
  state_.Update([](RunStatus& status) {
    status = {"run \"1\"\n",
              TrainerPhase::kRunning,
              12,
              100,
              {{"loss/mean", 0.25},
               {"bad", std::nan("")},
               {"huge", std::numeric_limits<double>::infinity()}},
              "/run/\xff",
              77.5};
  });
  const auto reply = Get("/status");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->get_header_value("Content-Type"), "application/json");
  const auto json = nlohmann::json::parse(reply->body);
  EXPECT_EQ(json.at("run_name"), "run \"1\"\n");
  EXPECT_EQ(json.at("phase"), "running");
  EXPECT_EQ(json.at("step"), 12);
  EXPECT_EQ(json.at("total_steps"), 100);
  EXPECT_EQ(json.at("metrics").at("loss/mean"), 0.25);
  EXPECT_TRUE(json.at("metrics").at("bad").is_null());
  EXPECT_TRUE(json.at("metrics").at("huge").is_null());
  EXPECT_EQ(json.at("last_checkpoint"), "/run/\xef\xbf\xbd");
  EXPECT_EQ(json.at("eta_seconds"), 77.5);
}

TEST_F(ControlServerTest, OtherPages) {
  const auto metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "taopd_x 1\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), ::testing::HasSubstr("version=0.0.4"));
  const auto health = Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(health->body, "ok\n");
  const auto nothing = Get("/nothing");
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->status, 404);
}

TEST_F(ControlServerTest, ExceptionOfThePageIsNoCrash) {
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start({}, &state_, ThrowingPages()));
  const auto reply = httplib::Client("127.0.0.1", server->http_port()).Get("/metrics");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 500);
  EXPECT_EQ(reply->body, "{\"error\":\"internal error\"}\n");
}

TEST_F(ControlServerTest, PauseResumeAndStopReachTheLoop) {
  grpc::ClientContext pause, resume, stop;
  v1::PauseResponse pause_reply;
  v1::ResumeResponse resume_reply;
  v1::StopResponse stop_reply;
  ASSERT_TRUE(stub_->Pause(&pause, {}, &pause_reply).ok());
  EXPECT_TRUE(state_.pause_requested());
  std::thread loop([&] { state_.WaitWhilePaused([] {}); });
  ASSERT_TRUE(stub_->Resume(&resume, {}, &resume_reply).ok());
  loop.join();
  EXPECT_FALSE(state_.stop_requested());
  ASSERT_TRUE(stub_->Stop(&stop, {}, &stop_reply).ok());
  EXPECT_TRUE(state_.stop_requested());
}

TEST_F(ControlServerTest, SaveAnswersWhenTheLoopHasSaved) {
  std::thread loop([&] {
    while (!state_.TakeSaveRequest()) std::this_thread::yield();
    state_.CheckpointSaved(StringOr("/run/step-000007"));
    while (!state_.TakeSaveRequest()) std::this_thread::yield();
    state_.CheckpointSaved(ResourceExhausted("the disk is full"));
  });
  std::string path;
  EXPECT_TRUE(Save(&path).ok());
  EXPECT_EQ(path, "/run/step-000007");
  const grpc::Status failed = Save(&path);
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(failed.error_message(), "the disk is full");
  loop.join();
}

TEST_F(ControlServerTest, SaveEndsAtItsDeadlineWhenTheLoopNeverComes) {
  std::string path;
  EXPECT_EQ(Save(&path, absl::Milliseconds(100)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The server answers others meanwhile and afterwards, and a later save is not confused by it.
  std::thread loop([&] {
    while (!state_.TakeSaveRequest()) std::this_thread::yield();
    state_.CheckpointSaved(StringOr("/later"));
    // The first request may have been taken before its cancellation arrived: then again.
    while (state_.status().step == 0) {
      if (state_.TakeSaveRequest()) state_.CheckpointSaved(StringOr("/later"));
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(Save(&path).ok());
  EXPECT_EQ(path, "/later");
  state_.Update([](RunStatus& status) { status.step = 1; });
  loop.join();
}

// More waiting saves than gRPC has threads: a blocked thread each would stop the server.
TEST_F(ControlServerTest, ManySavesWaitWithoutBlockingTheServer) {
  constexpr int kCount = 100;
  std::vector<grpc::ClientContext> contexts(kCount);
  std::vector<v1::SaveCheckpointResponse> replies(kCount);
  const v1::SaveCheckpointRequest request;
  std::atomic<int> num_ok = 0, num_done = 0;
  for (int i = 0; i < kCount; ++i) {
    stub_->async()->SaveCheckpoint(
        &contexts[i], &request, &replies[i], [&, i](grpc::Status status) {
          num_ok += status.ok() && replies[i].path() == "/run/step-000001";
          ++num_done;
        });
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GetStatusResponse reply;
  EXPECT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());
  while (num_done < kCount) {
    if (state_.TakeSaveRequest()) state_.CheckpointSaved(StringOr("/run/step-000001"));
    std::this_thread::yield();
  }
  EXPECT_EQ(num_ok, kCount);
}

TEST_F(ControlServerTest, DestructionEndsWaitingSaves) {
  grpc::ClientContext context;
  v1::SaveCheckpointResponse reply;
  const v1::SaveCheckpointRequest request;
  std::atomic<bool> is_done = false;
  stub_->async()->SaveCheckpoint(&context, &request, &reply, [&](grpc::Status status) {
    EXPECT_FALSE(status.ok());
    is_done = true;
  });
  while (!state_.TakeSaveRequest()) std::this_thread::yield();
  server_.reset();
  while (!is_done) std::this_thread::yield();
  state_.CheckpointSaved(StringOr("/too-late"));  // calls nobody back
}

// A call of a service whose messages are not part of this build: they are written as their bytes.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string* reply) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer request_bytes(&slice, 1);
  grpc::ByteBuffer reply_bytes;
  grpc::Status result;
  absl::Notification answered;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request_bytes, &reply_bytes,
                 [&](grpc::Status status) {
                   result = std::move(status);
                   answered.Notify();
                 });
  answered.WaitForNotification();
  std::vector<grpc::Slice> slices;
  if (result.ok() && reply_bytes.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices) {
      reply->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  return result;
}

TEST_F(ControlServerTest, HealthAnswersForTheServerAndTheService) {
  for (const std::string service : {"", "taopd.v1.Trainer"}) {
    std::string reply;
    const std::string request = Concat('\x0a', static_cast<char>(service.size()), service);
    const grpc::Status status = CallRaw(channel_, "/grpc.health.v1.Health/Check", request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply, "\x08\x01");  // status = SERVING
  }
}

TEST_F(ControlServerTest, ReflectionNamesTheService) {
  std::string reply;
  const grpc::Status status =
      CallRaw(channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x00", 2), &reply);  // list_services = ""
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(reply, ::testing::HasSubstr("taopd.v1.Trainer"));
}

TEST_F(ControlServerTest, PortsInUseAreNamed) {
  ControlServerOptions options;
  options.grpc_port = server_->grpc_port();
  EXPECT_ERROR(ControlServer::Start(options, &state_, {}), absl::StatusCode::kUnavailable,
               Concat("127.0.0.1:", server_->grpc_port(), " for gRPC"));
  options.grpc_port = 0;
  options.http_port = server_->http_port();
  EXPECT_ERROR(ControlServer::Start(options, &state_, {}), absl::StatusCode::kUnavailable,
               Concat("127.0.0.1:", server_->http_port(), " for HTTP: Address already in use"));
  // Free again once the first is gone.
  options.grpc_port = server_->grpc_port();
  server_.reset();
  EXPECT_OK(ControlServer::Start(options, &state_, {}));
}

// ---- The page for people ------------------------------------------------------------------------

TEST_F(ControlServerTest, ThePageRunsItsOwnScriptOnly) {
  const auto page = Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  const std::string policy = page->get_header_value("Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  // The digest is that of the script in the page.
  const size_t begin = page->body.find("<script>") + 8, end = page->body.find("</script>");
  const std::string digest =
      absl::Base64Escape(absl::HexStringToBytes(Sha256Hex(page->body.substr(begin, end - begin))));
  EXPECT_NE(policy.find("'sha256-" + digest + "'"), std::string::npos) << policy;
  for (const char* id : {"phase", "eta", "teacher", "pause", "resume", "save", "stop", "report"}) {
    EXPECT_NE(page->body.find(std::string("id=\"") + id + "\""), std::string::npos) << id;
  }
}

TEST_F(ControlServerTest, VisitorsShareOneReport) {
  for (int i = 0; i < 5; ++i) {
    const auto report = Get("/report");
    ASSERT_TRUE(report);
    EXPECT_EQ(report->body, "<html>the report</html>");
  }
  EXPECT_EQ(num_reports_, 1);
}

TEST_F(ControlServerTest, ARunWithoutAReportSaysSo) {
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start({}, &state_, {}));
  const auto report = httplib::Client("127.0.0.1", server->http_port()).Get("/report");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->status, 503);
}

TEST_F(ControlServerTest, TheTeachersHealthIsInTheStatus) {
  state_.Update([](RunStatus& status) { status.teacher = {"big", true, 7, 3, 1, 2, 5}; });
  const auto teacher = nlohmann::json::parse(Get("/status")->body).at("teacher");
  EXPECT_EQ(teacher, nlohmann::json::parse(R"({"name":"big","waiting":true,"requests":7,"retries":3,
                                               "failures":1,"in_flight":2,"queued":5})"));
}

TEST_F(ControlServerTest, PostsAskForWhatTheirPathSays) {
  const int port = server_->http_port();
  EXPECT_EQ(Post(port, "/pause")->status, 202);
  EXPECT_TRUE(state_.pause_requested());
  EXPECT_EQ(Post(port, "/resume")->status, 202);
  EXPECT_FALSE(state_.pause_requested());
  EXPECT_EQ(Post(port, "/save")->status, 202);
  EXPECT_TRUE(state_.TakeSaveRequest());
  state_.CheckpointSaved(std::string("/run/step-1"));
  EXPECT_EQ(Post(port, "/stop")->status, 202);
  EXPECT_TRUE(state_.stop_requested());
  EXPECT_EQ(Post(port, "/nothing")->status, 404);
  state_.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  EXPECT_EQ(Post(port, "/save")->status, 503);
}

// A page of another site can send a simple POST to 127.0.0.1, but not this header.
TEST_F(ControlServerTest, PostsWithoutTheHeaderDoNothing) {
  httplib::Client client("127.0.0.1", server_->http_port());
  EXPECT_EQ(client.Post("/stop", "", "text/plain")->status, 403);
  EXPECT_FALSE(state_.stop_requested());
  EXPECT_EQ(client.Get("/stop")->status, 404);
}

TEST_F(ControlServerTest, WithATokenOnlyReadingIsFree) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       ControlServer::Start({.token = "s3cret"}, &state_, Pages()));
  const int port = server->http_port();
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3creT",
                            "Bearer s3cret2", "s3cret", "Basic s3cret"}) {
    const httplib::Headers headers = {{"Authorization", wrong}};
    for (const char* path : {"/stop", "/pause", "/resume", "/save"}) {
      EXPECT_EQ(Post(port, path, headers)->status, 401) << wrong << " " << path;
    }
  }
  EXPECT_FALSE(state_.stop_requested());
  EXPECT_FALSE(state_.pause_requested());
  EXPECT_FALSE(state_.TakeSaveRequest());
  EXPECT_EQ(httplib::Client("127.0.0.1", port).Get("/status")->status, 200);
  EXPECT_EQ(Post(port, "/pause", {{"Authorization", "Bearer s3cret"}})->status, 202);
  EXPECT_TRUE(state_.pause_requested());

  // The same over gRPC.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::Trainer::NewStub(grpc::CreateCustomChannel(
      Concat("127.0.0.1:", server->grpc_port()), grpc::InsecureChannelCredentials(), arguments));
  const auto code_with = [&](const std::string& authorization) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::StopResponse reply;
    return stub->Stop(&context, {}, &reply).error_code();
  };
  EXPECT_EQ(code_with(""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(code_with("Bearer other"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(state_.stop_requested());
  grpc::ClientContext status_context;
  v1::GetStatusResponse status;
  EXPECT_TRUE(stub->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(code_with("Bearer s3cret"), grpc::StatusCode::OK);
  EXPECT_TRUE(state_.stop_requested());
}

TEST_F(ControlServerTest, OptionsAreChecked) {
  EXPECT_ERROR(ControlServer::Start({.http_port = 65536}, &state_, {}),
               absl::StatusCode::kInvalidArgument, "http_port 65536");
  EXPECT_ERROR(ControlServer::Start({.grpc_port = -1}, &state_, {}),
               absl::StatusCode::kInvalidArgument, "grpc_port -1");
  EXPECT_ERROR(ControlServer::Start({.host = ""}, &state_, {}), absl::StatusCode::kInvalidArgument,
               "host is empty");
  EXPECT_ERROR(ControlServer::Start({.host = "192.0.2.1"}, &state_, {}),
               absl::StatusCode::kUnavailable, "192.0.2.1:0");
}

}  // namespace
}  // namespace taopd
