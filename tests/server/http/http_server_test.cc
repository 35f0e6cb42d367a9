// The HTTP server with real sockets on 127.0.0.1 and an engine that can hold work back.
#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tests/server/http/hostile_requests.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/support/files.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

using HttpServerTest = HttpServerFixture;

TEST_F(HttpServerTest, LoadingReadyDraining) {
  EXPECT_EQ(client_->Get("/health")->status, 503);
  EXPECT_EQ(client_->Get("/v1/models")->status, 503);
  EXPECT_EQ(Complete("{\"prompt\":[1]}")->status, 503);
  EXPECT_EQ(client_->Get("/metrics")->status, 200);
  Ready();
  const auto health = client_->Get("/health");
  EXPECT_EQ(client_->Get("/health/")->status, health->status);  // as TRL's client asks
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(health->body, "");
  const auto answer = Complete("{\"prompt\":[1]}");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "application/json");
  state_.SetDraining();
  const auto unhealthy = client_->Get("/health");
  EXPECT_EQ(unhealthy->status, 503);
  EXPECT_THAT(unhealthy->body, HasSubstr("the server is draining"));
  const auto refused = Complete("{\"prompt\":[1]}");
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->get_header_value("Connection"), "close");
  EXPECT_EQ(json::parse(refused->body)["error"]["message"], "the server is draining");
}

TEST_F(HttpServerTest, ModelsAndVersion) {
  Ready();
  const json models = json::parse(client_->Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 64);
  EXPECT_EQ(models["data"][0]["permission"][0]["allow_logprobs"], true);
  EXPECT_TRUE(json::parse(client_->Get("/version")->body)["version"].is_string());
  fake_.model->weight_version = "step-100";
  EXPECT_EQ(json::parse(client_->Get("/get_model_info")->body)["weight_version"], "step-100");
}

TEST_F(HttpServerTest, UnknownRoutesAndMethods) {
  const auto unknown = client_->Get("/nothing");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_EQ(unknown->body, R"({"detail":"Not Found"})");
  const auto responses = client_->Post("/v1/responses", "{}", "application/json");
  EXPECT_EQ(responses->status, 404);
  const json refused = json::parse(responses->body);
  EXPECT_EQ(refused["detail"], "Not Found");
  EXPECT_EQ(refused["error"]["message"],
            "there is no route POST /v1/responses; GET /openapi.json lists the routes");
  EXPECT_EQ(refused["error"]["type"], "NotFoundError");
  EXPECT_EQ(refused["error"]["code"], 404);
  const auto method = client_->Get("/v1/completions");
  EXPECT_EQ(method->status, 405);
  EXPECT_EQ(method->get_header_value("Allow"), "POST");
  EXPECT_EQ(method->body, R"({"detail":"Method Not Allowed"})");
}

TEST_F(HttpServerTest, ClientOfARequestIsTheOneThatATrustedProxyNames) {
  Ready();
  const auto client_of = [this](const httplib::Headers& headers) {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(20);
    EXPECT_EQ(
        client.Post("/v1/completions", headers, "{\"prompt\":[1]}", "application/json")->status,
        200);
    return fake_.engine->seen().back().client;
  };
  const httplib::Headers named = {{"X-Forwarded-For", "1.1.1.1, 192.0.2.7"}};
  EXPECT_EQ(client_of(named), "127.0.0.1");  // nobody is trusted
  ASSERT_OK(state_.trusted_proxies().Add({"127.0.0.1"}));
  EXPECT_EQ(client_of(named), "192.0.2.7");
  EXPECT_EQ(client_of({{"Forwarded", "for=192.0.2.8"}}), "192.0.2.8");
  EXPECT_EQ(client_of({}), "127.0.0.1");
  EXPECT_EQ(client_of({{"X-Forwarded-For", "nobody"}}), "127.0.0.1");
  EXPECT_THAT(metrics_.Text(state_), HasSubstr("taopd_teacher_forwarded_malformed_total 1"));
}

TEST_F(HttpServerTest, Ipv4ClientOfAnIpv6ServerKeepsItsAddress) {
  Ready();
  auto server = HttpServer::Listen("::", 0, &state_, &metrics_, [] {});
  if (!server.ok()) GTEST_SKIP() << "there is no IPv6: " << server.status();
  httplib::Client client("127.0.0.1", (*server)->port());
  client.set_read_timeout(20);
  const auto answer = client.Post("/v1/completions", "{\"prompt\":[1]}", "application/json");
  if (!answer) GTEST_SKIP() << "IPv6 sockets take no IPv4 clients";
  EXPECT_EQ(fake_.engine->seen().at(0).client, "127.0.0.1");
  (*server)->Shutdown(absl::Now());
}

TEST_F(HttpServerTest, RequestIdHeaderNamesTheAnswerUpToItsLimit) {
  Ready();
  const auto complete = [this](const std::string& id) {
    return client_->Post("/v1/completions", {{"X-Request-Id", id}}, "{\"prompt\":[1]}",
                         "application/json");
  };
  EXPECT_EQ(json::parse(complete("abc\"d")->body)["id"], "cmpl-abc\"d");
  EXPECT_EQ(complete(std::string(1024, 'i'))->status, 200);
  const auto refused = complete(std::string(1025, 'i'));
  EXPECT_EQ(refused->status, 400);
  EXPECT_THAT(refused->body, HasSubstr("X-Request-Id has 1025 bytes, the limit is 1024"));
}

TEST_F(HttpServerTest, FullQueueIs429) {
  EngineLimits limits = kFakeLimits;
  limits.max_queued_tokens = 3;
  fake_ = MakeFakeModel(false, limits);
  Ready();
  fake_.engine->Hold(true);
  std::thread first([&] {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(20);
    EXPECT_EQ(client.Post("/v1/completions", "{\"prompt\":[1,2]}", "application/json")->status,
              200);
  });
  fake_.engine->WaitForQueued(1);
  const auto refused = Complete("{\"prompt\":[1,2]}");
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  const auto hopeless = Complete("{\"prompt\":[[1,2],[1,2]]}");
  EXPECT_EQ(hopeless->status, 400);
  EXPECT_THAT(hopeless->body, HasSubstr("more than max_queued_tokens 3"));
  fake_.engine->Hold(false);
  first.join();
}

// The texts of a stream come from it, so the stream throws after its head was sent.
class ThrowingTokenizer final : public FakeTokenizer {
 public:
  explicit ThrowingTokenizer(bool throws_exception) : throws_exception_(throws_exception) {}
  std::string Decode(const std::vector<int32_t>&, bool) const override {
    if (throws_exception_) throw std::runtime_error("no text");
    throw 1;
  }

 private:
  const bool throws_exception_;
};

TEST_F(HttpServerTest, StreamThatThrowsIsCutAndRecordedWithTheStatusThatWasSent) {
  const std::string body = R"({"prompt":[1],"max_tokens":2,"ignore_eos":true,"stream":true})";
  for (const bool throws_exception : {true, false}) {
    FakeModel throwing = MakeFakeModel();
    throwing.model->tokenizer = std::make_unique<ThrowingTokenizer>(throws_exception);
    state_.SetReady(throwing.model);
    const std::string answer = Raw(WholePost(body));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
    // Neither a last chunk nor a second answer follows the head.
    EXPECT_EQ(answer.find("\r\n\r\n") + 4, answer.size());
    throwing.engine->Drain(absl::Now());
  }
  const std::string metrics = client_->Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("requests_total{code=\"200\",method=\"POST /v1/completions\"} 2"));
  EXPECT_EQ(metrics.find("code=\"500\""), std::string::npos);
}

TEST_F(HttpServerTest, ClientGoneCancelsTheWork) {
  Ready();
  fake_.engine->Hold(true);
  RawClient client(server_->port());
  client.Send(WholePost("{\"prompt\":[[1],[2]]}"));
  fake_.engine->WaitForQueued(2);
  client.Close();
  fake_.engine->WaitForCancels(2);
}

TEST_F(HttpServerTest, MemoryOfBodiesAndAnswersIsBoundedAndReturned) {
  Ready();
  {
    const auto most =
        state_.message_budget().TryReserve(state_.message_budget().max_bytes() - 1000);
    const auto refused = Complete("{\"prompt\":[1],\"max_tokens\":1}");
    EXPECT_EQ(refused->status, 429);
    EXPECT_THAT(refused->body, HasSubstr("max_message_memory_bytes"));
    EXPECT_EQ(Complete("{\"prompt\":[1]}" + std::string(1000, ' '))->status, 429);
  }
  EXPECT_EQ(Complete("{\"prompt\":[1]}")->status, 200);
  server_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(state_.message_budget().num_used(), 0);
}

TEST_F(HttpServerTest, ChunkedBodyIsRead) {
  Ready();
  EXPECT_THAT(Raw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json; "
                  "charset=utf-8\r\n"
                  "Transfer-Encoding: chunked\r\nConnection: "
                  "close\r\n\r\n8\r\n{\"prompt\r\n6\r\n\":[1]}\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, MetricsCountKnownRoutesOnly) {
  Ready();
  client_->Get("/health");
  client_->Get("/made/up/by/the/client");
  Complete("{\"prompt\":[1]}");
  const auto metrics = client_->Get("/metrics");
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics->body,
              HasSubstr("taopd_teacher_requests_total{code=\"200\",method=\"GET /health\"} 1"));
  EXPECT_THAT(metrics->body,
              HasSubstr("taopd_teacher_requests_total{code=\"404\",method=\"other\"} 1"));
  EXPECT_THAT(
      metrics->body,
      HasSubstr("taopd_teacher_requests_total{code=\"200\",method=\"POST /v1/completions\"} 1"));
  EXPECT_EQ(metrics->body.find("made/up"), std::string::npos);
}

TEST_F(HttpServerTest, RefusedRequestsAreLoggedWithTheirClientsAndIds) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(auto log, AccessLog::Open(dir.File("log")));
  metrics_.SetAccessLog(log.get());
  ASSERT_OK(state_.trusted_proxies().Add({"127.0.0.1"}));
  client_->Get("/x", {{"X-Request-Id", "of-head"}, {"X-Forwarded-For", "192.0.2.7"}});
  Raw("POST /generate HTTP/1.1\r\nHost: a\r\nX-Request-Id: of-body\r\n"
      "Transfer-Encoding: chunked\r\n\r\nx\r\n");
  server_->Shutdown(absl::Now());
  log.reset();
  const std::string lines = ReadFile(dir.File("log"));
  EXPECT_THAT(lines, HasSubstr(R"("client":"192.0.2.7","request_id":"of-head")"));
  EXPECT_THAT(lines, HasSubstr(R"("client":"127.0.0.1","request_id":"of-body")"));
}

TEST_F(HttpServerTest, ManyClientsAtOnceAreAllAnswered) {
  Ready();
  std::atomic<int> num_ok{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back([&] {
      httplib::Client client("127.0.0.1", server_->port());
      client.set_keep_alive(true);  // each holds its connection: more than there are threads
      client.set_read_timeout(20);
      for (int k = 0; k < 2; ++k) {
        const auto answer = client.Post(
            "/v1/completions", "{\"prompt\":[1,2],\"prompt_logprobs\":1}", "application/json");
        if (answer && answer->status == 200) ++num_ok;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_ok, 400);
}

// A server that did not wait would stop listening while the requests below are still being sent.
TEST_F(HttpServerTest, ShutdownServesUntilTheAnswerHasLeft) {
  Ready();
  fake_.engine->Hold(true);
  std::thread call([&] {
    const auto answer = Complete("{\"prompt\":[1]}");
    EXPECT_TRUE(answer && answer->status == 200);
  });
  fake_.engine->WaitForQueued(1);
  std::atomic<bool> has_begun{false}, has_returned{false};
  std::thread shutdown([&] {
    has_begun = true;
    server_->Shutdown(absl::InfiniteFuture());
    has_returned = true;
  });
  while (!has_begun) std::this_thread::yield();
  for (int i = 0; i < 300; ++i) {
    httplib::Client other("127.0.0.1", server_->port());
    const auto answer = other.Get("/version");
    EXPECT_TRUE(answer && answer->status == 200) << "request " << i;
    if (!answer) break;
  }
  EXPECT_FALSE(has_returned);
  fake_.engine->Hold(false);
  call.join();
  shutdown.join();
}

TEST_F(HttpServerTest, ShutdownCutsWhatTheDeadlineLeaves) {
  Ready();
  fake_.engine->Hold(true);
  std::thread call([&] {
    const auto answer = Complete("{\"prompt\":[1]}");
    EXPECT_TRUE(!answer || answer->status == 499);
  });
  fake_.engine->WaitForQueued(1);
  server_->Shutdown(absl::Now());
  call.join();
}

TEST_F(HttpServerTest, PortInUseIsUnavailable) {
  EXPECT_ERROR(HttpServer::Listen("127.0.0.1", server_->port(), &state_, &metrics_, [] {}),
               kUnavailable, Concat("port ", server_->port()));
}

}  // namespace
}  // namespace taopd::testing
