// The parser of requests: what it takes, what it refuses, and that it does not depend on how the
// bytes are cut into pieces.
#include "server/http/parser/request_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/server/http/hostile_requests.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using State = RequestParser::State;
using ::testing::SizeIs;

const RequestLimits kSmall = {.max_head_bytes = 2000,
                              .max_target_bytes = 100,
                              .max_header_bytes = 300,
                              .max_headers = 5,
                              .max_body_bytes = 64,
                              .max_chunk_extension_bytes = 8};

std::string Get(const std::string& headers) {
  return "GET /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
}
std::string Post(const std::string& headers, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body;
}
std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n", body);
}

// Feeds the bytes in pieces that `next` sizes, until the parser takes no more.
size_t Feed(std::string_view bytes, const std::function<size_t()>& next, RequestParser* parser) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const size_t count = parser->Consume(bytes.substr(taken, next()));
    if (count == 0) break;
    taken += count;
  }
  return taken;
}

// The outcome as a text: "200 METHOD target body" or the status of the refusal, however the bytes
// are cut.
std::string Outcome(const std::string& bytes, const RequestLimits& limits = kSmall) {
  std::vector<std::string> outcomes;
  std::mt19937 random(7);
  for (int way = 0; way < 4; ++way) {
    RequestParser parser(limits);
    const auto next = [&]() -> size_t {
      return way == 0 ? bytes.size() : way == 1 ? 1 : 1 + random() % 9;
    };
    const size_t taken = Feed(bytes, next, &parser);
    if (parser.state() == State::kRefused) {
      outcomes.push_back(Concat(parser.refusal().status));
      EXPECT_EQ(parser.Consume("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0u);
      EXPECT_LT(parser.refusal().message.size(), 400u);
    } else if (parser.state() == State::kDone) {
      const ParsedRequest request = parser.Take();
      outcomes.push_back(Concat("200 ", request.head.method, " ", request.head.target, " ",
                                request.body, "|", bytes.substr(taken)));
    } else {
      outcomes.push_back("more");
    }
  }
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, outcomes[0]) << bytes;
  return outcomes[0];
}

struct Case {
  const char* what;
  std::string bytes;
  std::string outcome;
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Outcome(c.bytes), c.outcome) << c.what;
}

TEST(RequestParserTest, Accepts) {
  Check({
      {"GET", Get(""), "200 GET /x |"},
      {"query", "GET /a?b=%20c HTTP/1.1\r\nHost: a\r\n\r\n", "200 GET /a?b=%20c |"},
      {"HEAD", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "200 HEAD / |"},
      {"HTTP/1.0 without a host", "GET / HTTP/1.0\r\n\r\n", "200 GET / |"},
      {"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "200 GET / |"},
      {"host and port", "GET / HTTP/1.1\r\nHost: a-1.b:80\r\n\r\n", "200 GET / |"},
      {"empty port", "GET / HTTP/1.1\r\nHost: a:\r\n\r\n", "200 GET / |"},
      {"IPv6 host without a port", "GET / HTTP/1.1\r\nHost: [fe80::1]\r\n\r\n", "200 GET / |"},
      {"IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", "200 GET / |"},
      {"value of any bytes", Get("A: \t\"\xc3\xa4\xff\" \t\r\n"), "200 GET /x |"},
      {"empty value", Get("A:\r\n"), "200 GET /x |"},
      {"body", Post("Content-Length: 3\r\n", "abc"), "200 POST /x abc|"},
      {"no body", Post("content-length: 0\r\n"), "200 POST /x |"},
      {"leading zeros", Post("Content-Length: 0003\r\n", "abc"), "200 POST /x abc|"},
      {"what follows is left", Post("Content-Length: 2\r\n", "abGET "), "200 POST /x ab|GET "},
      {"chunks", Chunked("3\r\nabc\r\n01\r\nd\r\nA\r\n0123456789\r\n0\r\n\r\nGET"),
       "200 POST /x abcd0123456789|GET"},
      {"no chunks", Chunked("0\r\n\r\n"), "200 POST /x |"},
      {"short extension", Chunked("1;a=b\r\nx\r\n0;c\r\n\r\n"), "200 POST /x x|"},
      {"identity", Post("Content-Encoding: identity\r\nContent-Length: 1\r\n", "x"),
       "200 POST /x x|"},
      {"Connection", Get("Connection: keep-alive, TE\r\nTE: trailers\r\n"), "200 GET /x |"},
      {"most headers", Get("A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n"), "200 GET /x |"},
      {"largest body", Post("Content-Length: 64\r\n", std::string(64, 'x')),
       "200 POST /x " + std::string(64, 'x') + "|"},
      {"largest chunk", Chunked("40\r\n" + std::string(64, 'x') + "\r\n0\r\n\r\n"),
       "200 POST /x " + std::string(64, 'x') + "|"},
      {"POST without a length", Post("", "GET /"), "200 POST /x |GET /"},
      {"POST of HTTP/1.0 without a length", "POST / HTTP/1.0\r\n\r\nx", "200 POST / |x"},
      {"offer of h2c",
       Get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"),
       "200 GET /x |"},
      {"offer of h2c with a body",
       Post("Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n", "abc"),
       "200 POST /x abc|"},
      {"offers of several protocols",
       Get("Upgrade: websocket, h2c/2.0\r\nupgrade: TLS/1.0\r\nConnection: upgrade\r\n"),
       "200 GET /x |"},
      {"offer that names no protocol", Get("Connection: Upgrade\r\nUpgrade:\r\n"), "200 GET /x |"},
      {"HTTP2-Settings alone", Get("HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"), "200 GET /x |"},
      {"half a head", "GET / HTTP/1.1\r\nHost: a\r\n", "more"},
      {"half a body", Post("Content-Length: 3\r\n", "ab"), "more"},
      {"half a chunk", Chunked("3\r\nab"), "more"},
      {"half an end", Chunked("0\r\n\r"), "more"},
  });
}

// A server that ignores an offer must not show it to the routes either, and goes on as before.
TEST(RequestParserTest, OffersOfOtherProtocolsEndHere) {
  RequestParser parser(kSmall);
  parser.Consume(
      Get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\nB: c\r\n"));
  ASSERT_EQ(parser.state(), State::kDone);
  const RequestHead head = parser.Take().head;
  EXPECT_TRUE(head.keep_alive);
  ASSERT_THAT(head.headers, SizeIs(2));
  EXPECT_EQ(head.headers[1].name, "B");
}

TEST(RequestParserTest, APostWithoutALengthIsTheLastRequest) {
  RequestParser parser(kSmall);
  parser.Consume(Post(""));
  ASSERT_EQ(parser.state(), State::kDone);
  EXPECT_FALSE(parser.head().keep_alive);
  parser.Take();
  parser.Consume(Post("Content-Length: 0\r\n"));
  ASSERT_EQ(parser.state(), State::kDone);
  EXPECT_TRUE(parser.head().keep_alive);
}

TEST(RequestParserTest, AnEmptyBodyTakesNoMemory) {
  RequestParser parser(kSmall);
  parser.Consume(Get(""));
  EXPECT_EQ(parser.head_bytes(), 0u);
  EXPECT_EQ(parser.body_bytes(), 0u);
  parser.Take();
  parser.Consume(Post("Content-Length: 40\r\n", std::string(40, 'x')));
  EXPECT_GE(parser.body_bytes(), 40u);
}

TEST(RequestParserTest, RefusesHostileRequests) {
  for (const auto& requests :
       {HostileRequestLines(), HostileHeaders(), HostileLengths(), HostileChunks()}) {
    for (const HostileRequest& request : requests) {
      EXPECT_EQ(Outcome(request.bytes + testing::kSmuggled, RequestLimits()),
                Concat(request.status))
          << request.name;
    }
  }
}

TEST(RequestParserTest, RefusesWhatIsBeyondItsLimits) {
  Check({
      {"long target", "GET /" + std::string(100, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", "414"},
      {"too many headers", Get("A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n"), "431"},
      {"long header", Get("A: " + std::string(298, 'b') + "\r\n"), "431"},
      {"endless headers", "GET / HTTP/1.1\r\n" + std::string(3000, 'a'), "431"},
      {"large body", Post("Content-Length: 65\r\n"), "413"},
      {"large chunk", Chunked("41\r\n"), "413"},
      {"large chunks", Chunked("40\r\n" + std::string(64, 'x') + "\r\n1\r\n"), "413"},
      {"long extension", Chunked("1;123456789\r\nx\r\n"), "400"},
  });
}

TEST(RequestParserTest, ChunksAreMostlyData) {
  RequestLimits limits;
  std::string ones, extended;
  for (int i = 0; i < 100'000; ++i) {
    ones += "1\r\nx\r\n";
    extended += "1;" + std::string(100, 'e') + "\r\nx\r\n";
  }
  RequestParser parser(limits);
  parser.Consume(Chunked(ones));
  EXPECT_EQ(parser.state(), State::kBody);
  RequestParser wasteful(limits);
  wasteful.Consume(Chunked(extended));
  ASSERT_EQ(wasteful.state(), State::kRefused);
  EXPECT_THAT(wasteful.refusal().message, HasSubstr("much more bytes than its data"));
}

TEST(RequestParserTest, HeadSaysHowTheConnectionGoesOn) {
  const auto head_of = [](const std::string& bytes) {
    RequestParser parser(kSmall);
    parser.Consume(bytes);
    return parser.head();
  };
  EXPECT_TRUE(head_of(Get("")).keep_alive);
  EXPECT_FALSE(head_of(Get("Connection: TE, Close\r\n")).keep_alive);
  EXPECT_FALSE(head_of("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
  const std::string expects = "Expect: 100-Continue\r\n";
  EXPECT_TRUE(head_of(Post(expects + "Content-Length: 1\r\n")).expects_continue);
  EXPECT_FALSE(head_of(Post(expects + "Content-Length: 0\r\n")).expects_continue);
  EXPECT_FALSE(
      head_of("POST / HTTP/1.0\r\n" + expects + "Content-Length: 1\r\n\r\n").expects_continue);
}

TEST(RequestParserTest, HeadersAreHandedOnWithoutThoseOfTheConnection) {
  RequestParser parser(kSmall);
  parser.Consume(Post("Connection: close\r\nTE: x\r\nA: %0d%0aB: c \r\nContent-Length: 0\r\n"));
  const RequestHead& head = parser.head();
  ASSERT_THAT(head.headers, SizeIs(2));  // Host and A
  EXPECT_EQ(*head.Find("a"), "%0d%0aB: c");
  EXPECT_EQ(head.Find("b"), nullptr);
}

TEST(RequestParserTest, MessagesQuoteLittle) {
  RequestParser parser(RequestLimits{});
  parser.Consume("GET /x HTTP/1.1\r\nHost: a\r\n" + std::string(15000, 'b') + "\r\n\r\n");
  ASSERT_EQ(parser.state(), State::kRefused);
  EXPECT_LT(parser.refusal().message.size(), 300u);
  EXPECT_THAT(parser.refusal().message, HasSubstr("(15000 bytes)"));
}

TEST(RequestParserTest, MemoryFollowsWhatHasArrived) {
  RequestParser parser(RequestLimits{});
  parser.Consume(Post("Content-Length: 33554432\r\n"));
  EXPECT_LT(parser.body_bytes(), 100u);
  size_t arrived = 0;
  for (int i = 0; i < 100; ++i) {
    parser.Consume(std::string(10'000, 'x'));
    arrived += 10'000;
    ASSERT_LE(parser.body_bytes(), 2 * arrived);
  }
  parser.Drop();
  EXPECT_LT(parser.body_bytes(), 100u);
}

}  // namespace
}  // namespace taopd::testing
