// The control server answers those who may ask, and tells the others why not.
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"
#include "trainer/control/control_server.h"
#include "trainer/control/host_names.h"

namespace taopd::testing {
namespace {

TEST(HostNames, TheAddressOfTheConnectionIsOwn) {
  const HostNames names("0.0.0.0", {});
  EXPECT_TRUE(names.Allows("10.1.2.3:8080", "10.1.2.3"));
  EXPECT_TRUE(names.Allows("10.1.2.3:8080", "::ffff:10.1.2.3"));
  EXPECT_TRUE(names.Allows("[2001:db8::5]:8080", "2001:db8::5"));
  EXPECT_FALSE(names.Allows("10.1.2.4:8080", "10.1.2.3"));
  EXPECT_FALSE(names.Allows("", ""));
  EXPECT_FALSE(names.Allows(":8080", ""));
}

class ControlAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, ControlServer::Start({}, &state_, Pages()));
  }
  static ControlPages Pages() {
    return {.report_html = [] { return std::string("<html>the report</html>"); }};
  }
  httplib::Result Get(const std::string& path) {
    return httplib::Client("127.0.0.1", server_->http_port()).Get(path.c_str());
  }
  RunState state_;
  std::unique_ptr<ControlServer> server_;
};

// Returns the answer to a request of these lines.
std::string RawAnswer(int port, const std::string& request) {
  RawClient client(port);
  EXPECT_TRUE(client.Send(request));
  return client.ReadAll();
}

// A page of another site whose name was made to point here (DNS rebinding) sends its own name.
TEST_F(ControlAccessTest, ForeignHostsAreRefusedOnEveryRoute) {
  const ControlServerOptions options = {.allowed_hosts = {"Trainer.Example"}};
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start(options, &state_, Pages()));
  const auto ask = [&](const std::string& route, const std::string& host) {
    return RawAnswer(server->http_port(), route + " HTTP/1.1\r\nHost: " + host +
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
  EXPECT_FALSE(state_.pause_requested());
  EXPECT_FALSE(state_.stop_requested());
  for (const std::string host :
       {"localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:1", "::1", "trainer.example:443",
        "trainer.example.", static_cast<const char*>(own)}) {
    EXPECT_THAT(ask("GET /healthz", host), StartsWith("HTTP/1.1 200")) << host;
  }
}

// curl -X POST sends no Content-Length.
TEST_F(ControlAccessTest, APostWithoutABodyIsAPost) {
  const auto post = [&](const std::string& path, const std::string& headers) {
    return RawAnswer(server_->http_port(), "POST " + path +
                                               " HTTP/1.1\r\nHost: localhost\r\n"
                                               "Connection: close\r\n" +
                                               headers + "\r\n");
  };
  EXPECT_THAT(post("/pause", "X-Taopd-Control: 1\r\n"), StartsWith("HTTP/1.1 202"));
  EXPECT_TRUE(state_.pause_requested());
  EXPECT_THAT(post("/stop", ""), HasSubstr("{\"error\":\"the header X-Taopd-Control"));
  EXPECT_FALSE(state_.stop_requested());
}

TEST_F(ControlAccessTest, RefusalsSayWhyInJson) {
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

TEST_F(ControlAccessTest, TheTokenBoxIsThereWhereATokenIsAskedFor) {
  EXPECT_EQ(Get("/")->body.find("id=\"token\""), std::string::npos);
  const ControlServerOptions options = {.token = "secret"};
  ASSERT_OK_AND_ASSIGN(const auto server, ControlServer::Start(options, &state_, Pages()));
  const auto page = httplib::Client("127.0.0.1", server->http_port()).Get("/");
  EXPECT_NE(page->body.find("id=\"token\""), std::string::npos);
  EXPECT_EQ(page->body.find("secret"), std::string::npos);
  // Nothing is paused when the page is loaded.
  EXPECT_NE(page->body.find("id=\"resume\" disabled"), std::string::npos);
}

}  // namespace
}  // namespace taopd::testing
