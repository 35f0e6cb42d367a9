// HttpClient with real sockets: against a server that httplib runs, and against one whose bytes and
// closings each test writes by hand.
#include "trainer/net/http_client.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>

#include <atomic>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/support/http_listener.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;
constexpr absl::Duration kPatience = absl::Seconds(60);

// A server that gives each connection to `serve`, one after the other, and then closes it.
class RawServer {
 public:
  // `serve` gets the connection and its number. It must return after the client has gone away.
  explicit RawServer(std::function<void(int fd, int number)> serve)
      : serve_(std::move(serve)), thread_([this] { Accept(); }) {}
  ~RawServer() {
    listener_.EndAccepting();
    thread_.join();
  }

  ServerAddress address() const { return {.address = Concat("127.0.0.1:", listener_.port())}; }
  int num_connections() const { return num_connections_; }

 private:
  void Accept() {
    for (int number = 0;; ++number) {
      const FileDescriptor connection = listener_.Accept();
      if (connection.get() < 0) return;
      ++num_connections_;
      serve_(connection.get(), number);
    }
  }

  RawListener listener_;
  const std::function<void(int, int)> serve_;
  std::atomic<int> num_connections_{0};
  std::thread thread_;  // last, because it uses all of the above
};

// Reads a request without a body. Returns it, or an empty text if the client has gone away.
std::string ReadRequest(int fd) {
  std::string text;
  char byte = 0;
  while (!text.ends_with("\r\n\r\n")) {
    if (::recv(fd, &byte, 1, 0) != 1) return "";
    text += byte;
  }
  return text;
}

// Returns whether the bytes were sent.
bool Send(int fd, const std::string& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

void WaitForClose(int fd) {
  char byte = 0;
  while (::recv(fd, &byte, 1, 0) > 0) {
  }
}

std::string ReplyOf(const std::string& body) {
  return Concat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

// Answers each request until the client goes away.
void AnswerAll(int fd, const std::string& body) {
  while (!ReadRequest(fd).empty() && Send(fd, ReplyOf(body))) {
  }
}

// Announces a long body and sends a byte of it now and then, until the client goes away.
void Trickle(int fd) {
  if (ReadRequest(fd).empty() || !Send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"))
    return;
  while (Send(fd, "x")) absl::SleepFor(absl::Milliseconds(5));
}

TEST(HttpClient, SendsARequestAndReceivesTheReply) {
  httplib::Server server;
  server.Get("/v1/models", [](const httplib::Request& request, httplib::Response& reply) {
    EXPECT_EQ(request.get_header_value("Authorization"), "Bearer secret");
    reply.set_content("models", "text/plain");
  });
  server.Post("/v1/ask", [](const httplib::Request& request, httplib::Response& reply) {
    EXPECT_EQ(request.get_header_value("Content-Type"), "application/json");
    reply.status = 429;
    reply.set_header("Retry-After", "7");
    reply.set_content("busy: " + request.body, "text/plain");
  });
  const HttpListener listener(&server);
  ClientCredentials credentials;
  credentials.api_key = "secret";
  HttpClient client({{.address = listener.address(), .prefix = "/v1"}}, credentials);

  std::string pieces;
  const auto keep = [&](std::string_view data) { pieces += data; };
  ASSERT_OK_AND_ASSIGN(const HttpReply models,
                       client.Exchange(0, "/models", "", kMaxBytes, kPatience, keep));
  EXPECT_EQ(models.status, 200);
  EXPECT_EQ(models.body, "models");
  EXPECT_EQ(pieces, "models");
  EXPECT_EQ(models.retry_after, std::nullopt);
  ASSERT_OK_AND_ASSIGN(const HttpReply busy,
                       client.Exchange(0, "/ask", "{}", kMaxBytes, kPatience, keep));
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.body, "busy: {}");
  EXPECT_EQ(busy.retry_after, absl::Seconds(7));
  EXPECT_EQ(pieces, "models") << "on_data gets the bodies of 200 replies alone";
}

TEST(HttpClient, KeepsAConnectionForTheNextExchange) {
  RawServer server([](int fd, int) { AnswerAll(fd, "yes"); });
  HttpClient client({server.address()}, {});
  for (int i = 0; i < 3; ++i) EXPECT_OK(client.Exchange(0, "/", "", kMaxBytes, kPatience));
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(HttpClient, RepeatsARequestOnceIfAKeptConnectionWasClosed) {
  RawServer server([](int fd, int number) {
    if (ReadRequest(fd).empty() || number == 2) return;  // the third gets no reply
    Send(fd, ReplyOf(Concat("connection ", number)));
    // The second request on the connection is read and not answered.
    ReadRequest(fd);
  });
  HttpClient client({server.address()}, {});
  ASSERT_OK_AND_ASSIGN(const HttpReply first, client.Exchange(0, "/", "", kMaxBytes, kPatience));
  EXPECT_EQ(first.body, "connection 0");
  ASSERT_OK_AND_ASSIGN(const HttpReply second, client.Exchange(0, "/", "", kMaxBytes, kPatience));
  EXPECT_EQ(second.body, "connection 1");
  // A new connection that is closed is an error.
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience), kUnavailable, "was closed");
  EXPECT_EQ(server.num_connections(), 3);
}

TEST(HttpClient, AReplyThatBreaksOffIsNotAskedForAgain) {
  RawServer server([](int fd, int number) {
    if (ReadRequest(fd).empty() || !Send(fd, ReplyOf("yes"))) return;
    if (number > 0 || ReadRequest(fd).empty()) return;
    Send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
  });
  HttpClient client({server.address()}, {});
  EXPECT_OK(client.Exchange(0, "/", "", kMaxBytes, kPatience));
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience), kUnavailable, "");
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(HttpClient, NoServerAndNoHttpAreUnavailable) {
  ServerAddress nobody;
  {
    const RawServer server([](int, int) {});
    nobody = server.address();
  }
  HttpClient without({nobody}, {});
  EXPECT_ERROR(without.Exchange(0, "/", "", kMaxBytes, kPatience), kUnavailable, "no connection");

  RawServer other([](int fd, int) {
    if (!ReadRequest(fd).empty()) Send(fd, "\x04 this is another protocol\r\n\r\n");
  });
  HttpClient client({other.address()}, {});
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience), kUnavailable, "not HTTP");
}

TEST(HttpClient, ADeadlineEndsAReplyThatTricklesAndTheWaitForASilentServer) {
  for (const auto serve : {Trickle, WaitForClose}) {
    RawServer server([serve](int fd, int) { serve(fd); });
    HttpClient client({server.address()}, {});
    const absl::Time start = absl::Now();
    EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, absl::Milliseconds(100)), kDeadlineExceeded,
                 "time limit");
    EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
  }
}

TEST(HttpClient, AStopTokenEndsItsExchangeAlone) {
  RawServer trickles([](int fd, int) { Trickle(fd); });
  RawServer answers([](int fd, int) { AnswerAll(fd, "yes"); });
  HttpClient client({trickles.address(), answers.address()}, {});
  std::stop_source stop;
  absl::Notification began;
  std::thread stopper([&] {
    began.WaitForNotification();
    stop.request_stop();
  });
  const auto note = [&](std::string_view) {
    if (!began.HasBeenNotified()) began.Notify();
  };
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience, note, stop.get_token()),
               kCancelled, "the request was cancelled");
  stopper.join();
  EXPECT_OK(client.Exchange(1, "/", "", kMaxBytes, kPatience));
  EXPECT_ERROR(client.Exchange(1, "/", "", kMaxBytes, kPatience, nullptr, stop.get_token()),
               kCancelled, "the request was cancelled");
}

TEST(HttpClient, CancelAllEndsThisAndLaterExchanges) {
  RawServer server([](int fd, int) { Trickle(fd); });
  HttpClient client({server.address()}, {});
  absl::Notification began;
  std::thread canceller([&] {
    began.WaitForNotification();
    client.CancelAll();
  });
  const auto note = [&](std::string_view) {
    if (!began.HasBeenNotified()) began.Notify();
  };
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience, note), kCancelled, "is closing");
  canceller.join();
  EXPECT_ERROR(client.Exchange(0, "/", "", kMaxBytes, kPatience), kCancelled, "is closing");
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(HttpClient, AReplyThatIsTooLongIsDataLoss) {
  RawServer server([](int fd, int) { AnswerAll(fd, "0123456789"); });
  HttpClient client({server.address()}, {});
  EXPECT_OK(client.Exchange(0, "/", "", 10, kPatience));
  std::string pieces;
  const auto keep = [&](std::string_view data) { pieces += data; };
  EXPECT_ERROR(client.Exchange(0, "/", "", 9, kPatience, keep), kDataLoss, "longer than 9 bytes");
  EXPECT_LE(pieces.size(), 9);
}

}  // namespace
}  // namespace taopd::testing
