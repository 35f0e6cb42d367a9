// The control server over real sockets: it answers those who may ask, and tells the others why not.
#include "trainer/control/control_server.h"

#include <absl/strings/escaping.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "common/io/sha256.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"
#include "trainer/control/host_names.h"

namespace taopd::testing {
namespace {

class ControlServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, ControlServer::Start({}, &control_, Pages()));
    ASSERT_GT(server_->http_port(), 0);
  }
  ControlPages Pages() {
    ControlPages pages = {.prometheus_text = [] { return "taopd_x 1\n"; }};
    pages.report_html = [this]() -> absl::StatusOr<std::string> {
      ++num_reports_;
      if (num_reports_ > 1) return NotFound("metrics.jsonl");
      return std::string("<html>the report</html>");
    };
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
  RunControl control_;
  std::atomic<int> num_reports_ = 0;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlServerTest, StatusOverHttpIsJson) {
  control_.Update([](RunStatus& status) {
    status = {"run \"1\"\n",
              TrainerPhase::kRunning,
              12,
              100,
              {{"loss/mean", 0.25},
               {"bad", std::nan("")},
               {"huge", std::numeric_limits<double>::infinity()}},
              "/run/\xff",
              77.5};
    status.teacher = {"big", true, 7, 3, 1, 2, 5};
    status.plan_gb = 12.5;
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
  EXPECT_EQ(json.at("memory_plan_gb"), 12.5);
  EXPECT_EQ(json.at("teacher"), nlohmann::json::parse(R"({"name":"big","waiting":true,"requests":7,
      "retries":3,"failures":1,"in_flight":2,"queued":5})"));
}

TEST_F(ControlServerTest, OtherPages) {
  const auto metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "taopd_x 1\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
  const auto health = Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(health->body, "ok\n");
  const ControlPages pages = {.health = [] { return Unavailable("no progress for 2 s"); }};
  ASSERT_OK_AND_ASSIGN(const auto stalled, ControlServer::Start({}, &control_, pages));
  const auto reason = httplib::Client("127.0.0.1", stalled->http_port()).Get("/healthz");
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->status, 503);
  EXPECT_EQ(reason->body, "{\"error\":\"no progress for 2 s\"}\n");
}

TEST_F(ControlServerTest, ExceptionOfThePageIsNoCrash) {
  const ControlPages pages = {
      .prometheus_text = []() -> std::string { throw std::runtime_error("secret"); }};
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start({}, &control_, pages));
  const auto reply = httplib::Client("127.0.0.1", server->http_port()).Get("/metrics");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 500);
  EXPECT_EQ(reply->body, "{\"error\":\"internal error\"}\n");
}

// Each byte comes in time, but the request never ends.
TEST_F(ControlServerTest, ClientsThatSendByteByByteKeepNobodyOut) {
  std::deque<RawClient> slow;
  for (int i = 0; i < 20; ++i) slow.emplace_back(server_->http_port());
  std::atomic<bool> is_served = false;
  std::thread sender([&] {
    for (; !is_served; absl::SleepFor(absl::Milliseconds(100)))
      for (RawClient& client : slow) client.Send("x");
  });
  httplib::Client client("127.0.0.1", server_->http_port());
  client.set_read_timeout(30);
  const httplib::Result result = client.Get("/healthz");
  is_served = true;
  sender.join();
  EXPECT_TRUE(result);
}

TEST_F(ControlServerTest, PortsInUseAreNamed) {
  const ControlServerOptions options = {.http_port = server_->http_port()};
  EXPECT_ERROR(ControlServer::Start(options, &control_, {}), kUnavailable,
               Concat("127.0.0.1:", server_->http_port(), " for HTTP: Address already in use"));
  // Free again once the first is gone.
  server_.reset();
  EXPECT_OK(ControlServer::Start(options, &control_, {}));
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
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start({}, &control_, {}));
  const auto report = httplib::Client("127.0.0.1", server->http_port()).Get("/report");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->status, 503);
}

TEST_F(ControlServerTest, PostsAskForWhatTheirPathSays) {
  const int port = server_->http_port();
  EXPECT_EQ(Post(port, "/pause")->status, 202);
  EXPECT_TRUE(control_.pause_requested());
  EXPECT_EQ(Post(port, "/resume")->status, 202);
  EXPECT_FALSE(control_.pause_requested());
  EXPECT_EQ(Post(port, "/save")->status, 202);
  EXPECT_TRUE(control_.TakeSaveRequest());
  EXPECT_EQ(Post(port, "/stop")->status, 202);
  EXPECT_TRUE(control_.stop_requested());
  control_.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  EXPECT_EQ(Post(port, "/save")->status, 503);
}

// A page of another site can send a simple POST to 127.0.0.1, but not this header.
TEST_F(ControlServerTest, PostsWithoutTheHeaderDoNothing) {
  httplib::Client client("127.0.0.1", server_->http_port());
  EXPECT_EQ(client.Post("/stop", "", "text/plain")->status, 403);
  EXPECT_FALSE(control_.stop_requested());
  EXPECT_EQ(client.Get("/stop")->status, 404);
}

TEST_F(ControlServerTest, WithATokenOnlyReadingIsFree) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       ControlServer::Start({.token = "s3cret"}, &control_, Pages()));
  const int port = server->http_port();
  const httplib::Result none = Post(port, "/stop", {});
  EXPECT_EQ(none->status, 401);
  EXPECT_THAT(none->body, HasSubstr("the run's token is missing"));
  const httplib::Result other = Post(port, "/stop", {{"Authorization", "Bearer other"}});
  EXPECT_EQ(other->status, 401);
  EXPECT_THAT(other->body, HasSubstr("another token than the run's"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3creT",
                            "Bearer s3cret2", "s3cret", "Basic s3cret"}) {
    const httplib::Headers headers = {{"Authorization", wrong}};
    for (const char* path : {"/stop", "/pause", "/resume", "/save"}) {
      EXPECT_EQ(Post(port, path, headers)->status, 401) << wrong << " " << path;
    }
  }
  EXPECT_FALSE(control_.stop_requested());
  EXPECT_FALSE(control_.pause_requested());
  EXPECT_FALSE(control_.TakeSaveRequest());
  EXPECT_EQ(httplib::Client("127.0.0.1", port).Get("/status")->status, 200);
  EXPECT_EQ(Post(port, "/pause", {{"Authorization", "Bearer s3cret"}})->status, 202);
  EXPECT_TRUE(control_.pause_requested());
  EXPECT_EQ(Post(port, "/resume", {{"Authorization", "bEARER s3cret"}})->status, 202);
}

// ---- Who may ask --------------------------------------------------------------------------------

TEST(HostNames, TheAddressOfTheConnectionIsOwn) {
  const HostNames names("0.0.0.0", {});
  EXPECT_TRUE(names.Allows("10.1.2.3:8080", "10.1.2.3"));
  EXPECT_TRUE(names.Allows("10.1.2.3:8080", "::ffff:10.1.2.3"));
  EXPECT_TRUE(names.Allows("[2001:db8::5]:8080", "2001:db8::5"));
  EXPECT_FALSE(names.Allows("10.1.2.4:8080", "10.1.2.3"));
  EXPECT_FALSE(names.Allows("", ""));
  EXPECT_FALSE(names.Allows(":8080", ""));
}

// A page of another site whose name was made to point here (DNS rebinding) sends its own name.
TEST_F(ControlServerTest, ForeignHostsAreRefusedOnEveryRoute) {
  const ControlServerOptions options = {.allowed_hosts = {"Trainer.Example"}};
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start(options, &control_, Pages()));
  const auto ask = [&](const std::string& route, const std::string& host) {
    return AskRaw(server->http_port(), route + " HTTP/1.1\r\nHost: " + host +
                                           "\r\nX-Taopd-Control: 1\r\nContent-Length: 0\r\n"
                                           "Connection: close\r\n\r\n");
  };
  char own[256] = {};
  ASSERT_EQ(gethostname(own, sizeof(own) - 1), 0);
  for (const std::string route :
       {"GET /", "GET /report", "GET /status", "GET /metrics", "GET /healthz", "GET /nothing",
        "POST /pause", "POST /resume", "POST /save", "POST /stop"}) {
    for (const std::string host :
         {"evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.1",
          "localhost.evil.example", "trainer.example.evil", "[2001:db8::1]:80", "["}) {
      const std::string answer = ask(route, host);
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 421")) << route << " " << host;
      EXPECT_THAT(answer, HasSubstr("{\"error\":\"this server has no name " + host + ";")) << route;
    }
  }
  EXPECT_FALSE(control_.pause_requested());
  EXPECT_FALSE(control_.stop_requested());
  for (const std::string host :
       {"localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:1", "::1", "trainer.example:443",
        "trainer.example.", static_cast<const char*>(own)}) {
    EXPECT_THAT(ask("GET /healthz", host), StartsWith("HTTP/1.1 200")) << host;
  }
}

// curl -X POST sends no Content-Length.
TEST_F(ControlServerTest, APostWithoutABodyIsAPost) {
  const auto post = [&](const std::string& path, const std::string& headers) {
    return AskRaw(server_->http_port(), "POST " + path +
                                            " HTTP/1.1\r\nHost: localhost\r\n"
                                            "Connection: close\r\n" +
                                            headers + "\r\n");
  };
  EXPECT_THAT(post("/pause", "X-Taopd-Control: 1\r\n"), StartsWith("HTTP/1.1 202"));
  EXPECT_TRUE(control_.pause_requested());
  EXPECT_THAT(post("/stop", ""), HasSubstr("{\"error\":\"the header X-Taopd-Control"));
  EXPECT_FALSE(control_.stop_requested());
}

TEST_F(ControlServerTest, RefusalsSayWhyInJson) {
  const auto error = [](const httplib::Result& reply) {
    EXPECT_EQ(reply->get_header_value("Content-Type"), "application/json");
    return nlohmann::json::parse(reply->body).at("error").get<std::string>();
  };
  const auto nothing = Get("/nothing");
  EXPECT_EQ(nothing->status, 404);
  EXPECT_EQ(error(nothing), "there is no such page or action: GET /nothing");
  const auto action =
      httplib::Client("127.0.0.1", server_->http_port()).Post("/halt", "", "text/plain");
  EXPECT_EQ(action->status, 404);
  EXPECT_EQ(error(action), "there is no such page or action: POST /halt");
  const auto large = httplib::Client("127.0.0.1", server_->http_port())
                         .Post("/pause", std::string(5000, 'x'), "text/plain");
  EXPECT_EQ(large->status, 413);
  EXPECT_EQ(error(large), "the body is too long: POST /pause");
}

TEST_F(ControlServerTest, TheTokenBoxIsThereWhereATokenIsAskedFor) {
  EXPECT_EQ(Get("/")->body.find("id=\"token\""), std::string::npos);
  const ControlServerOptions options = {.token = "secret"};
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start(options, &control_, Pages()));
  const auto page = httplib::Client("127.0.0.1", server->http_port()).Get("/");
  EXPECT_NE(page->body.find("id=\"token\""), std::string::npos);
  EXPECT_EQ(page->body.find("secret"), std::string::npos);
  // Nothing is paused when the page is loaded.
  EXPECT_NE(page->body.find("id=\"resume\" disabled"), std::string::npos);
}

TEST_F(ControlServerTest, OptionsAreChecked) {
  EXPECT_ERROR(ControlServer::Start({.http_port = 65536}, &control_, {}), kInvalidArgument,
               "http_port 65536");
  EXPECT_ERROR(ControlServer::Start({.host = ""}, &control_, {}), kInvalidArgument,
               "host is empty");
  EXPECT_ERROR(ControlServer::Start({.host = "192.0.2.1"}, &control_, {}), kUnavailable,
               "192.0.2.1:0");
}

}  // namespace
}  // namespace taopd::testing
