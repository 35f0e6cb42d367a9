// The front with real sockets on 127.0.0.1 and a handler that can wait. Limits of time are short
// where a test waits for them to pass.
#include "server/http/front/front.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/http_response.h"
#include "tests/support/process.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Answers with the request's body. Paths: /wait waits until Release; /stream sends chunks;
// /endless sends them until the client is gone; /probe is a probe.
class EchoHandler final : public FrontHandler {
 public:
  std::optional<WireAnswer> Admit(const RequestHead& head, Access access,
                                  const std::string&) override {
    if (head.path() != "/none" && (access == Access::kAll || IsProbe(head))) return std::nullopt;
    return Plain(404, "none", !head.keep_alive || head.has_body());
  }
  bool IsProbe(const RequestHead& head) const override { return head.path() == "/probe"; }
  bool IsTrustedProxy(const std::string& peer) const override { return peer == proxy_; }
  ClientIdentity Identify(const RequestHead& head, const std::string& peer) const override {
    const std::string* client = head.Find("x-client");
    const std::string& address = client == nullptr ? peer : *client;
    return {address, SubscriberOf(address), SubscriberOf(address)};
  }
  WireAnswer Refuse(const Refusal& refusal, const RequestHead&, const std::string&) override {
    return Plain(refusal.status, refusal.message, true);
  }
  void Handle(Exchange& exchange) override {
    const ParsedRequest& request = exchange.request();
    const std::string_view path = request.head.path();
    const AnswerStyle style = {false, request.head.is_http_1_1, !request.head.keep_alive};
    if (path == "/wait") {
      absl::MutexLock lock(&mutex_);
      ++num_waiting_;
      mutex_.Await(absl::Condition(&released_));
      --num_waiting_;
    }
    if (path != "/stream" && path != "/endless") {
      return exchange.Finish(Plain(200, request.body, style.close));
    }
    HttpResponse response = {.stream = [endless = path == "/endless"](const SendPiece& send) {
      while (endless && send(std::string(1 << 16, 'x'))) continue;
      if (endless) return;
      for (const char* piece : {"one", "", "two"}) send(piece);
    }};
    WireAnswer rest = SendAnswer(std::move(response), style, exchange);
    if (path == "/endless") endless_ended_.Notify();
    exchange.Finish(std::move(rest));
  }

  void WaitForWaiting(int count) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return num_waiting_ == count; };
    mutex_.Await(absl::Condition(&reached));
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }
  absl::Notification& endless_ended() { return endless_ended_; }
  // Before the front starts.
  void set_proxy(std::string address) { proxy_ = std::move(address); }

 private:
  static WireAnswer Plain(int status, std::string body, bool close) {
    return WholeAnswer({.status = status, .body = std::move(body)}, {.close = close});
  }

  std::string proxy_;
  absl::Mutex mutex_;
  bool released_ = false;
  int num_waiting_ = 0;
  absl::Notification endless_ended_;
};

class FrontTest : public ::testing::Test {
 protected:
  void TearDown() override {
    handler_.Release();
    if (front_ != nullptr) front_->Shutdown(absl::Now() + absl::Seconds(10));
    EXPECT_EQ(budget_.num_used(), 0);
  }
  void Start(const FrontLimits& limits = {}) {
    front_ =
        std::make_unique<Front>(limits, &handler_, &budget_, [] { FAIL() << "listener lost"; });
    for (const bool probes_only : {false, true}) {
      auto listener = Listener::Open("127.0.0.1", 0);
      ASSERT_OK(listener);
      (probes_only ? probe_port_ : port_) = listener->port();
      front_->AddListener(*std::move(listener), probes_only, nullptr);
    }
    ASSERT_OK(front_->Start());
  }
  static std::string Get(const std::string& path, const std::string& headers = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
  }
  static std::string Post(const std::string& path, const std::string& body) {
    return "POST " + path +
           " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
  void ExpectServed(std::vector<RawClient>& clients) {
    for (RawClient& client : clients) {
      EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    }
  }
  std::string AskProbe() { return AskRaw(port_, Get("/probe", "Connection: close\r\n")); }
  // A probe connects from this address while 64 requests are in work, and its request comes behind
  // a flood of other connections.
  void FloodAProbe(const FrontLimits& limits, const char* from) {
    Start(limits);
    const std::vector<RawClient> working = ConnectMany(port_, 64, Get("/wait"));
    std::vector<RawClient> half;
    EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));
    RawClient probe(port_, from);
    for (int i = 0; i < 10; ++i) {
      half.emplace_back(port_);
      half.back().Send("GET / HTTP/1.1\r\n");
      EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));  // so the other one is known
    }
    probe.Send(Get("/probe"));
    EXPECT_THAT(probe.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    handler_.Release();
  }

  EchoHandler handler_;
  ByteBudget budget_{64 << 20, /*max_client_share=*/0.5};
  std::unique_ptr<Front> front_;
  int port_ = 0, probe_port_ = 0;
};

TEST_F(FrontTest, ServesOneRequestAfterTheOther) {
  Start();
  RawClient client(port_);
  for (const char* body : {"first", "second", "third"}) {
    client.Send(Post("/", body));
    EXPECT_THAT(client.ReadUntil(body), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
}

TEST_F(FrontTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawClient client(port_);
  std::string all;
  for (int i = 0; i < 300; ++i) all += i % 3 == 2 ? Get("/none") : Post("/", Concat("<", i, ">"));
  client.Send(all + Get("/", "Connection: close\r\n"));
  const std::string answers = client.ReadAll();
  size_t at = 0;
  for (int i = 0; i < 300; ++i) {
    at = answers.find(i % 3 == 2 ? std::string("none") : Concat("<", i, ">"), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_THAT(answers, EndsWith("Connection: close\r\n\r\n"));
}

TEST_F(FrontTest, NothingBehindARefusalIsRead) {
  Start();
  bool reset = true;
  RawClient client(port_);
  client.Send("GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n" + Get("/") + Get("/"));
  const std::string answer = client.ReadAll(&reset);
  EXPECT_FALSE(reset);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos);
}

TEST_F(FrontTest, BodyOfARefusedRequestIsNotRead) {
  Start();
  const std::string answer = AskRaw(port_, Post("/none", Get("/")));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos);
}

TEST_F(FrontTest, ContinuesWhenAsked) {
  Start();
  RawClient client(port_);
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("body");
  EXPECT_THAT(client.ReadUntil("body"), StartsWith("HTTP/1.1 200"));
}

TEST_F(FrontTest, Http10GetsOneAnswer) {
  Start();
  EXPECT_THAT(AskRaw(port_, "GET / HTTP/1.0\r\n\r\n"), HasSubstr("Connection: close\r\n"));
  // The end of a stream is the end of the connection.
  const std::string stream = AskRaw(port_, "GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_THAT(stream, EndsWith("\r\n\r\nonetwo"));
  EXPECT_THAT(stream, Not(HasSubstr("chunked")));
}

TEST_F(FrontTest, StreamsInChunksAndGoesOn) {
  Start();
  RawClient client(port_);
  client.Send(Get("/stream") + Post("/", "next"));
  const std::string stream = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(stream, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(stream, EndsWith("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"));
  EXPECT_THAT(client.ReadUntil("next"), StartsWith("HTTP/1.1 200"));
}

TEST_F(FrontTest, StreamEndsWhenTheClientIsGone) {
  Start();
  RawClient client(port_);
  client.Send(Get("/endless"));
  client.ReadUntil("xxxx");
  client.Close();
  handler_.endless_ended().WaitForNotification();
}

TEST_F(FrontTest, StreamEndsWhenTheClientDoesNotRead) {
  Start({.write_window = absl::Milliseconds(100), .min_bytes_per_second = int64_t{1} << 40});
  RawClient client(port_);
  client.Send(Get("/endless"));
  handler_.endless_ended().WaitForNotification();
}

TEST_F(FrontTest, AnswerIsCutWhenTheClientDoesNotRead) {
  Start({.write_window = absl::Milliseconds(100)});
  RawClient client(port_);
  client.Send(Post("/", std::string(16 << 20, 'x')));
  front_->Shutdown(absl::InfiniteFuture());  // waits for the answer to leave, or to be given up
}

TEST_F(FrontTest, SlowRequestsEndWith408) {
  Start({.head_timeout = absl::Milliseconds(200), .read_window = absl::Milliseconds(200)});
  EXPECT_THAT(AskRaw(port_, "GET / HTTP/1.1\r\nHost: a\r\n"), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(AskRaw(port_, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc"),
              StartsWith("HTTP/1.1 408"));
}

TEST_F(FrontTest, IdleConnectionsAreClosed) {
  Start({.idle_timeout = absl::Milliseconds(200)});
  EXPECT_EQ(AskRaw(port_, ""), "");
  // A busy machine may not send the request before its connection is closed.
  std::string answer;
  EXPECT_TRUE(PollUntil(kPatience, [&] { return !(answer = AskRaw(port_, Get("/"))).empty(); }));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, Not(HasSubstr("close")));
}

TEST_F(FrontTest, ProbesAreAnsweredWhileAllThreadsWait) {
  Start({.num_threads = 4, .max_client_worker_share = 1.0});
  std::vector<RawClient> waiting = ConnectMany(port_, 20, Get("/wait"));
  handler_.WaitForWaiting(4);
  EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));
  handler_.Release();
  ExpectServed(waiting);
}

TEST_F(FrontTest, ThreadsAreLeftForOtherClients) {
  Start({.num_threads = 4});
  std::vector<RawClient> waiting = ConnectMany(port_, 20, Get("/wait"));
  handler_.WaitForWaiting(2);
  RawClient other(port_, "127.0.0.2");
  other.Send(Get("/"));
  EXPECT_THAT(other.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  handler_.Release();
  ExpectServed(waiting);
}

TEST_F(FrontTest, NewConnectionsReplaceIdleOnes) {
  Start({.max_connections_per_client = 8});
  RawClient idle(port_);
  std::vector<RawClient> half;
  for (int i = 0; i < 20; ++i) {
    half.emplace_back(port_);
    half.back().Send("GET / HTTP/1.1\r\n");
    // Each is known before the next one comes.
    EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_THAT(half.front().ReadAll(), StartsWith("HTTP/1.1 503"));
  half.back().Send("Host: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(half.back().ReadAll(), StartsWith("HTTP/1.1 200"));
}

TEST_F(FrontTest, ProbesPassWhenEveryConnectionIsInWork) {
  Start({.max_connections = 4});
  std::vector<RawClient> waiting = ConnectMany(port_, 4, Get("/wait"));
  handler_.WaitForWaiting(4);
  EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(AskRaw(port_, Get("/", "Connection: close\r\n")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(AskRaw(probe_port_, Get("/probe", "Connection: close\r\n")),
              StartsWith("HTTP/1.1 200"));
}

TEST_F(FrontTest, AFloodOfConnectionsDoesNotCloseThatOfAProbe) {
  FloodAProbe({.max_connections = 64}, "127.0.0.2");
}

TEST_F(FrontTest, AClientsFloodOfConnectionsDoesNotCloseItsProbe) {
  FloodAProbe({.max_connections_per_client = 64}, "127.0.0.1");
}

TEST_F(FrontTest, ConnectionsOfATrustedProxyCountForTheClientsThatItNames) {
  handler_.set_proxy("127.0.0.3");
  Start({.max_connections_per_client = 2});
  std::vector<RawClient> idle, working;
  const auto ask_for = [&](const std::string& client) {
    RawClient proxy(port_, "127.0.0.3");
    proxy.Send(Get("/", "X-Client: " + client + "\r\n"));
    return proxy.ReadUntil("\r\n\r\n");
  };
  for (int i = 0; i < 8; ++i) {
    idle.emplace_back(port_, "127.0.0.3");
    idle.back().Send(Get("/", Concat("X-Client: 10.0.0.", i, "\r\n")));
    EXPECT_THAT(idle.back().ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  }
  for (int i = 0; i < 2; ++i) {
    working.emplace_back(port_, "127.0.0.3");
    working.back().Send(Get("/wait", "X-Client: 10.0.0.1\r\n"));
  }
  handler_.WaitForWaiting(2);
  EXPECT_THAT(ask_for("10.0.0.1"), StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(ask_for("10.0.0.2"), StartsWith("HTTP/1.1 200"));
  for (RawClient& client : idle) {  // none was closed for another one
    client.Send(Get("/"));
    EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(FrontTest, PortForProbesServesNothingElse) {
  Start();
  EXPECT_THAT(AskRaw(probe_port_, Get("/probe", "Connection: close\r\n")),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(AskRaw(probe_port_, Get("/", "Connection: close\r\n")), StartsWith("HTTP/1.1 404"));
}

TEST_F(FrontTest, DeclaredBytesTakeNoMemory) {
  Start();
  std::vector<RawClient> declared =
      ConnectMany(port_, 100, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 33554432\r\n\r\nx");
  const std::string body(1 << 20, 'y');
  RawClient client(port_);
  client.Send(Post("/", body));
  EXPECT_THAT(client.ReadUntil("yyyy"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(budget_.num_used(), 4 << 20);
  for (RawClient& open : declared) EXPECT_TRUE(open.Send("x"));
}

TEST_F(FrontTest, BodiesCountAsTheyArrive) {
  Start();
  RawClient client(port_);
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n" +
              std::string(4 << 20, 'x'));
  EXPECT_TRUE(PollUntil(kPatience, [&] { return budget_.num_used() >= 4 << 20; }));
  EXPECT_LE(budget_.num_used(), 8 << 20);
  client.Close();
  EXPECT_TRUE(PollUntil(kPatience, [&] { return budget_.num_used() == 0; }));
}

TEST_F(FrontTest, StalledBodiesGiveTheirMemoryToThoseThatMove) {
  Start({.read_window = absl::Hours(1)});
  const std::string most_of_it(14 << 20, 'x'), body(10 << 20, 'y');
  std::vector<RawClient> stalled =
      ConnectMany(port_, 2,
                  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(15 << 20) +
                      "\r\n\r\n" + most_of_it);
  ASSERT_TRUE(PollUntil(kPatience, [&] { return budget_.num_used() >= 30 << 20; }));
  // Refused while the others may still move, served once they have stalled.
  EXPECT_TRUE(PollUntil(kPatience, [&] {
    RawClient client(port_);
    client.Send(Post("/", body));
    const std::string answer = client.ReadUntil("\r\n\r\n");
    EXPECT_THAT(answer, AnyOf(StartsWith("HTTP/1.1 200"), StartsWith("HTTP/1.1 429")));
    return !answer.starts_with("HTTP/1.1 429");
  }));
  EXPECT_THAT(stalled.front().ReadAll(), StartsWith("HTTP/1.1 503"));
}

TEST_F(FrontTest, ClientThatSendsTooFastIsNotCut) {
  Start();
  const std::string body(20 << 20, 'z');
  RawClient client(port_);
  ASSERT_TRUE(client.Send(Post("/", body)));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(FrontTest, ShutdownCutsIdleAndHalfSentRequests) {
  Start();
  RawClient idle(port_), half(port_);
  half.Send("GET / HTTP/1.1\r\n");
  EXPECT_THAT(AskProbe(), StartsWith("HTTP/1.1 200"));  // both are known
  front_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_EQ(half.ReadAll(), "");
}

}  // namespace
}  // namespace taopd::testing
