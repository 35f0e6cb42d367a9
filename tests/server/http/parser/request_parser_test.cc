// The parser of requests: what it takes, what it refuses, and that it does not depend on how the
// bytes are cut into pieces.
#include "server/http/parser/request_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {
namespace {

using State = RequestParser::State;
using ::testing::HasSubstr;
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

TEST(RequestParserTest, RefusesRequestLines) {
  Check({
      {"empty line first", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"no version", "GET /\r\n\r\n", "400"},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"space at the end", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400"},
      {"tab", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"absolute form", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"authority form", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "501"},
      {"asterisk", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"bytes above ASCII", "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"half a percent code", "GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"wrong percent code", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"percent zero", "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"long target", "GET /" + std::string(100, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", "414"},
      {"endless target", "GET /" + std::string(1000, 'a'), "414"},
      {"unknown method", "BREW / HTTP/1.1\r\nHost: a\r\n\r\n", "501"},
      {"small letters", "get / HTTP/1.1\r\nHost: a\r\n\r\n", "501"},
      {"method of other characters", "GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"HTTP/2", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"},
      {"HTTP/2's preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
      {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "505"},
      {"HTTP/0.9", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", "505"},
      {"version of two digits", "GET / HTTP/1.11\r\nHost: a\r\n\r\n", "400"},
      {"no protocol", "GET / HTTPS/1.1\r\nHost: a\r\n\r\n", "400"},
      {"small protocol", "GET / http/1.1\r\nHost: a\r\n\r\n", "400"},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01", 6), "400"},
  });
}

TEST(RequestParserTest, RefusesHeaders) {
  Check({
      {"no host", "GET / HTTP/1.1\r\n\r\n", "400"},
      {"two hosts", Get("Host: a\r\n"), "400"},
      {"host with a space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
      {"two hosts in one", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"},
      {"open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "400"},
      {"close bracket", "GET / HTTP/1.1\r\nHost: ::1]\r\n\r\n", "400"},
      {"bracket in a name", "GET / HTTP/1.1\r\nHost: a[b]\r\n\r\n", "400"},
      {"empty brackets", "GET / HTTP/1.1\r\nHost: []\r\n\r\n", "400"},
      {"name behind brackets", "GET / HTTP/1.1\r\nHost: [::1]a\r\n\r\n", "400"},
      {"two ports", "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", "400"},
      {"port of letters", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", "400"},
      {"long port", "GET / HTTP/1.1\r\nHost: a:123456\r\n\r\n", "400"},
      {"host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"},
      {"bare line feed", "GET / HTTP/1.1\r\nHost: a\n\r\n", "400"},
      {"bare line feed at the end", "GET / HTTP/1.1\r\nHost: a\r\nA: b\n\n", "400"},
      {"line feeds alone", "GET / HTTP/1.1\nHost: a\n\n", "400"},
      {"bare carriage return", Get("A: b\rc\r\n"), "400"},
      {"carriage return before the end", "GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", "400"},
      {"NUL", "GET / HTTP/1.1\r\nHost: a\r\nA: " + std::string(1, '\0') + "\r\n\r\n", "400"},
      {"control character", Get("A: \x01\r\n"), "400"},
      {"delete character", Get("A: \x7f\r\n"), "400"},
      {"space before the colon", Get("A : b\r\n"), "400"},
      {"tab before the colon", Get("A\t: b\r\n"), "400"},
      {"space in the name", Get("A B: c\r\n"), "400"},
      {"no colon", Get("A\r\n"), "400"},
      {"no name", Get(": b\r\n"), "400"},
      {"parenthesis in the name", Get("A(): b\r\n"), "400"},
      {"name above ASCII", Get("\xc3\xa4: b\r\n"), "400"},
      {"continued line", Get("A: b\r\n c\r\n"), "400"},
      {"continued by a tab", Get("A: b\r\n\tc\r\n"), "400"},
      {"continued first line", "GET / HTTP/1.1\r\n A: b\r\nHost: a\r\n\r\n", "400"},
      {"too many", Get("A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n"), "431"},
      {"endless headers", "GET / HTTP/1.1\r\n" + std::string(3000, 'a'), "431"},
      {"long header", Get("A: " + std::string(298, 'b') + "\r\n"), "431"},
      {"range beside an upgrade", Get("Upgrade: h2c\r\nRange: bytes=0-1\r\n"), "416"},
      {"range", Get("Range: bytes=0-1\r\n"), "416"},
      {"if-range", Get("If-Range: x\r\n"), "416"},
      {"expectation", Post("Content-Length: 1\r\nExpect: 200-ok\r\n"), "417"},
      {"two authorizations", Get("Authorization: a\r\nauthorization: a\r\n"), "400"},
      {"two content types", Get("Content-Type: a\r\nContent-Type: b\r\n"), "400"},
      {"Connection names a header of the message", Get("Connection: Host\r\n"), "400"},
      {"Connection names the length", Get("Connection: close, content-length\r\n"), "400"},
      {"Connection is no list of tokens", Get("Connection: \"close\"\r\n"), "400"},
  });
}

TEST(RequestParserTest, RefusesAmbiguousOrLargeBodies) {
  Check({
      {"both framings", Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), "400"},
      {"both framings, reversed", Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
       "400"},
      {"equal lengths", Post("Content-Length: 3\r\nContent-Length: 3\r\n"), "400"},
      {"list of lengths", Post("Content-Length: 3, 3\r\n"), "400"},
      {"two encodings", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
       "400"},
      {"unknown encoding", Post("Transfer-Encoding: xchunked\r\n"), "501"},
      {"gzip, chunked", Post("Transfer-Encoding: gzip, chunked\r\n"), "501"},
      {"chunked, identity", Post("Transfer-Encoding: chunked, identity\r\n"), "501"},
      {"empty encoding", Post("Transfer-Encoding:\r\n"), "501"},
      {"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
      {"negative", Post("Content-Length: -1\r\n"), "400"},
      {"plus", Post("Content-Length: +3\r\n"), "400"},
      {"hexadecimal", Post("Content-Length: 0x3\r\n"), "400"},
      {"empty length", Post("Content-Length:\r\n"), "400"},
      {"percent code", Post("Content-Length: 3%33\r\n"), "400"},
      {"fraction", Post("Content-Length: 3.0\r\n"), "400"},
      {"space inside", Post("Content-Length: 1 2\r\n"), "400"},
      {"too large", Post("Content-Length: 65\r\n"), "413"},
      {"overflow", Post("Content-Length: 18446744073709551617\r\n"), "413"},
      {"body of GET", Get("Content-Length: 3\r\n"), "400"},
      {"chunks of GET", Get("Transfer-Encoding: chunked\r\n"), "400"},
      {"body of DELETE", "DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "400"},
      {"gzip", Post("Content-Encoding: gzip\r\nContent-Length: 1\r\n"), "415"},
  });
}

TEST(RequestParserTest, RefusesChunks) {
  Check({
      {"0x", Chunked("0x1\r\nx\r\n0\r\n\r\n"), "400"},
      {"plus", Chunked("+1\r\nx\r\n0\r\n\r\n"), "400"},
      {"minus", Chunked("-1\r\nx\r\n0\r\n\r\n"), "400"},
      {"space before", Chunked(" 1\r\nx\r\n0\r\n\r\n"), "400"},
      {"space behind", Chunked("1 \r\nx\r\n0\r\n\r\n"), "400"},
      {"NUL", Chunked(std::string("1\0\r\nx\r\n", 7)), "400"},
      {"empty size", Chunked("\r\nx\r\n0\r\n\r\n"), "400"},
      {"extension alone", Chunked(";a\r\n0\r\n\r\n"), "400"},
      {"not a digit", Chunked("g\r\n"), "400"},
      {"overflow", Chunked("fffffffffffffffe\r\n"), "413"},
      {"overflow of 17 digits", Chunked("10000000000000001\r\nx"), "413"},
      {"many zeros", Chunked("00000000000000001\r\nx"), "400"},
      {"larger than the limit", Chunked("41\r\n"), "413"},
      {"larger together", Chunked("40\r\n" + std::string(64, 'x') + "\r\n1\r\n"), "413"},
      {"bare line feed behind the size", Chunked("1\nx\r\n0\r\n\r\n"), "400"},
      {"bare carriage return", Chunked("1\rx"), "400"},
      {"bare line feed behind the data", Chunked("1\r\nx\n0\r\n\r\n"), "400"},
      {"longer than its size", Chunked("1\r\nxy\r\n0\r\n\r\n"), "400"},
      {"no end of the data", Chunked("1\r\nx0\r\n\r\n"), "400"},
      {"trailer", Chunked("0\r\nA: b\r\n\r\n"), "400"},
      {"framing as a trailer", Chunked("0\r\nTransfer-Encoding: chunked\r\n\r\n"), "400"},
      {"bare line feed at the end", Chunked("0\r\n\n"), "400"},
      {"long extension", Chunked("1;123456789\r\nx\r\n"), "400"},
      {"control character in an extension", Chunked("1;\x01\r\nx\r\n"), "400"},
      {"bare line feed in an extension", Chunked("1;a\nx\r\n"), "400"},
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
  EXPECT_THAT(wasteful.refusal().message, HasSubstr("more than of data"));
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
}  // namespace taopd
