// Requests that must be refused, or answered once, after which the connection is closed. Later
// bytes on the connection never count as a request.
#pragma once

#include <string>
#include <vector>

#include "tests/support/mutation.h"

namespace taopd::testing {

struct HostileRequest {
  std::string name;
  std::string bytes;
  int status;  // of the only answer; 0 if the connection is closed without one
};

// A request that would be answered if the bytes before it were taken for a complete request.
inline const std::string kSmuggled = "GET /version HTTP/1.1\r\nHost: a\r\n\r\n";

inline std::string Head(const std::string& line, const std::string& headers = "") {
  return line + "\r\nHost: a\r\n" + headers + "\r\n";
}
inline std::string PostHead(const std::string& headers) {
  return Head("POST /v1/completions HTTP/1.1", "Content-Type: application/json\r\n" + headers);
}
inline std::string ChunkedBody(const std::string& body) {
  return PostHead("Transfer-Encoding: chunked\r\n") + body;
}
// A whole request.
inline std::string WholePost(const std::string& body, const std::string& headers = "") {
  return PostHead(headers + "Content-Length: " + std::to_string(body.size()) + "\r\n") + body;
}
// Returns the same, after which the connection is to be closed.
inline std::string ClosingPost(const std::string& body, const std::string& headers = "") {
  return WholePost(body, "Connection: close\r\n" + headers);
}

inline std::vector<HostileRequest> HostileRequestLines() {
  const auto line = [](const std::string& text) { return text + "\r\nHost: a\r\n\r\n"; };
  return {
      {"empty line first", "\r\n" + kSmuggled, 400},
      {"line feed first", "\n" + kSmuggled, 400},
      {"no version", line("GET /health"), 400},
      {"no target", line("GET HTTP/1.1"), 400},
      {"two spaces", line("GET  /health HTTP/1.1"), 400},
      {"space first", line(" GET /health HTTP/1.1"), 400},
      {"space last", line("GET /health HTTP/1.1 "), 400},
      {"tab", line("GET\t/health HTTP/1.1"), 400},
      {"vertical tab", line("GET /health\vHTTP/1.1"), 400},
      {"four words", line("GET /health a HTTP/1.1"), 400},
      {"absolute form", line("GET http://a/health HTTP/1.1"), 400},
      {"authority form", line("GET a:80 HTTP/1.1"), 400},
      {"asterisk form", line("OPTIONS * HTTP/1.1"), 400},
      {"CONNECT", line("CONNECT a:80 HTTP/1.1"), 501},
      {"TRACE", line("TRACE /health HTTP/1.1"), 501},
      {"unknown method", line("BREW /health HTTP/1.1"), 501},
      {"small method", line("get /health HTTP/1.1"), 501},
      {"long method", line(std::string(5000, 'G') + " /health HTTP/1.1"), 400},
      {"method with a colon", line("GET: /health HTTP/1.1"), 400},
      {"method above ASCII", line("G\xc3\x84T /health HTTP/1.1"), 400},
      {"method with a parenthesis", line("GE(T /health HTTP/1.1"), 400},
      {"relative target", line("GET health HTTP/1.1"), 400},
      {"backslash", line("GET \\health HTTP/1.1"), 400},
      {"fragment", line("GET /health#a HTTP/1.1"), 400},
      {"target above ASCII", line("GET /h\xc3\xa4 HTTP/1.1"), 400},
      {"half a percent code", line("GET /health%4 HTTP/1.1"), 400},
      {"wrong percent code", line("GET /health%xx HTTP/1.1"), 400},
      {"percent NUL", line("GET /health%00 HTTP/1.1"), 400},
      {"long target", line("GET /health?" + std::string(9000, 'a') + " HTTP/1.1"), 414},
      {"very long target", "GET /health?" + std::string(1 << 20, 'a'), 414},
      {"many slashes", line("GET " + std::string(8500, '/') + " HTTP/1.1"), 414},
      {"HTTP/2.0", line("GET /health HTTP/2.0"), 505},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/3.0", line("GET /health HTTP/3.0"), 505},
      {"HTTP/0.9", line("GET /health HTTP/0.9"), 505},
      {"HTTP/1.2", line("GET /health HTTP/1.2"), 505},
      {"HTTP/11", line("GET /health HTTP/11"), 400},
      {"HTTP/1.11", line("GET /health HTTP/1.11"), 400},
      {"HTTP/1.1.1", line("GET /health HTTP/1.1.1"), 400},
      {"HTTP/1.", line("GET /health HTTP/1."), 400},
      {"HTTP/ 1.1", line("GET /health HTTP/ 1.1"), 400},
      {"http/1.1", line("GET /health http/1.1"), 400},
      {"HTTPS/1.1", line("GET /health HTTPS/1.1"), 400},
      {"ICY", line("GET /health ICY/1.0"), 400},
      {"NUL in the line", std::string("GET /he\0lth HTTP/1.1\r\nHost: a\r\n\r\n", 34), 400},
      {"TLS on a plain port", std::string("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", 11), 400},
      {"SSH", "SSH-2.0-OpenSSH_9.2\r\n\r\n", 400},
      {"binary", "\x01\x02\x03\x04", 400},
      {"line feeds alone", "GET /health HTTP/1.1\nHost: a\n\n", 400},
      {"carriage returns alone", "GET /health HTTP/1.1\rHost: a\r\r", 400},
      {"CR CR LF", "GET /health HTTP/1.1\r\r\nHost: a\r\n\r\n", 400},
      {"LF CR", "GET /health HTTP/1.1\n\rHost: a\n\r\n\r", 400},
  };
}

inline std::vector<HostileRequest> HostileHeaders() {
  const auto get = [](const std::string& headers) { return Head("GET /health HTTP/1.1", headers); };
  std::vector<HostileRequest> requests = {
      {"no host", "GET /health HTTP/1.1\r\n\r\n", 400},
      {"two hosts", get("Host: a\r\n"), 400},
      {"two hosts in other cases", get("hOST: b\r\n"), 400},
      {"host with a space", "GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"host with a path", "GET /health HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"host with an open bracket", "GET /health HTTP/1.1\r\nHost: [::\r\n\r\n", 400},
      {"host with two ports", "GET /health HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400},
      {"host with a large port", "GET /health HTTP/1.1\r\nHost: a:999999999\r\n\r\n", 400},
      {"host with a user", "GET /health HTTP/1.1\r\nHost: u@a\r\n\r\n", 400},
      {"bare LF in the head", "GET /health HTTP/1.1\r\nHost: a\nA: b\r\n\r\n", 400},
      {"bare LF before the end", "GET /health HTTP/1.1\r\nHost: a\r\nA: b\n\r\n", 400},
      {"bare LF as the end", "GET /health HTTP/1.1\r\nHost: a\r\nA: b\r\n\n", 400},
      {"A: b LF LF, then 200,000 headers",
       "GET /health HTTP/1.1\r\nHost: a\r\nA: b\n\n" + Repeated("A: b\r\n", 200'000), 400},
      {"bare CR in a value", get("A: b\rc\r\n"), 400},
      {"bare CR at a value's end", get("A: b\r\r\n"), 400},
      {"CR before the end", "GET /health HTTP/1.1\r\nHost: a\r\n\r\r\n", 400},
      {"NUL in a value", get(std::string("A: b\0c\r\n", 8)), 400},
      {"NUL in a name", get(std::string("A\0: b\r\n", 7)), 400},
      {"backspace", get("A: b\bc\r\n"), 400},
      {"escape", get("A: \x1b[31m\r\n"), 400},
      {"delete", get("A: b\x7f\r\n"), 400},
      {"space before the colon", get("A : b\r\n"), 400},
      {"space before the length's colon", PostHead("Content-Length : 3\r\n") + "abc", 400},
      {"tab before the colon", get("A\t: b\r\n"), 400},
      {"space in a name", get("A B: c\r\n"), 400},
      {"name that looks like an address", get("REMOTE_ADDR=1\r\n"), 400},
      {"no colon", get("A\r\n"), 400},
      {"no name", get(": b\r\n"), 400},
      {"colon alone", get(":\r\n"), 400},
      {"quotes in a name", get("\"A\": b\r\n"), 400},
      {"parentheses in a name", get("A(b): c\r\n"), 400},
      {"name above ASCII", get("\xc3\x84: b\r\n"), 400},
      {"line that goes on", get("A: b\r\n c\r\n"), 400},
      {"line that goes on with a tab", get("A: b\r\n\tc\r\n"), 400},
      {"first line that goes on", "GET /health HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"length that goes on", PostHead("Content-Length:\r\n 3\r\n") + "abc", 400},
      {"101 headers", get(Repeated("A: b\r\n", 100)), 431},
      {"100,000 headers", get(Repeated("A: b\r\n", 100'000)), 431},
      {"long header", get("A: " + std::string(20'000, 'b') + "\r\n"), 431},
      {"long name", get(std::string(20'000, 'A') + ": b\r\n"), 431},
      {"endless header", "GET /health HTTP/1.1\r\nA: " + std::string(4 << 20, 'b'), 431},
      {"large head", get(Repeated("A: " + std::string(10'000, 'b') + "\r\n", 8)), 431},
      {"range", get("Range: bytes=0-1\r\n"), 416},
      {"range behind the end", get("Range: bytes=99999999-\r\n"), 416},
      {"2,600 ranges", get("Range: bytes=0-0" + Repeated(",0-0", 2600) + "\r\n"), 416},
      {"range of a POST with a request as its body",
       "POST /health HTTP/1.1\r\nHost: a\r\nRange: bytes=0-\r\nContent-Length: " +
           std::to_string(kSmuggled.size()) + "\r\n\r\n" + kSmuggled,
       416},
      {"if-range", get("If-Range: a\r\n"), 416},
      {"upgrade with a range", get("Connection: Upgrade\r\nUpgrade: h2c\r\nRange: bytes=0-1\r\n"),
       416},
      {"upgrade in a damaged list", get("Connection: Upgrade, \"h2c\"\r\nUpgrade: h2c\r\n"), 400},
      {"expectation", PostHead("Content-Length: 3\r\nExpect: a-raise\r\n") + "abc", 417},
      {"two expectations", PostHead("Expect: 100-continue\r\nExpect: 100-continue\r\n"), 400},
      {"two authorizations", get("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400},
      {"two request ids", get("X-Request-Id: a\r\nX-Request-Id: b\r\n"), 400},
      {"two timeouts", get("X-Request-Timeout: 1\r\nX-Request-Timeout: 2\r\n"), 400},
      {"two content types", PostHead("Content-Type: text/plain\r\nContent-Length: 2\r\n"), 400},
      {"Connection names the host", get("Connection: Host\r\n"), 400},
      {"Connection names the length", get("Connection: close, Content-Length\r\n"), 400},
      {"Connection names the key", get("Connection: authorization\r\n"), 400},
      {"Connection is quoted", get("Connection: \"close\"\r\n"), 400},
  };
  for (const char* host : {"a, b", "::1]", "a[b]", "[]", "[::1]a", "a:b"}) {
    requests.push_back({std::string("host ") + host,
                        std::string("GET /health HTTP/1.1\r\nHost: ") + host + "\r\n\r\n", 400});
  }
  return requests;
}

inline std::vector<HostileRequest> HostileLengths() {
  const std::string body = kSmuggled;
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  std::vector<HostileRequest> requests = {
      {"length and chunks", PostHead(length + "Transfer-Encoding: chunked\r\n") + body, 400},
      {"chunks and length", PostHead("Transfer-Encoding: chunked\r\n" + length) + body, 400},
      {"two lengths", PostHead("Content-Length: 3\r\nContent-Length: 4\r\n") + "abcd", 400},
      {"two equal lengths", PostHead("Content-Length: 3\r\nContent-Length: 3\r\n") + "abc", 400},
      {"list of lengths", PostHead("Content-Length: 3, 3\r\n") + "abc", 400},
      {"two encodings",
       PostHead("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n") + "0\r\n\r\n",
       400},
      {"two equal encodings",
       PostHead("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
      {"length of GET", Head("GET /health HTTP/1.1", length) + body, 400},
      {"chunks of GET",
       Head("GET /health HTTP/1.1", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
      {"length of HEAD", Head("HEAD /health HTTP/1.1", length) + body, 400},
      {"length of DELETE", Head("DELETE /v1/models HTTP/1.1", length) + body, 400},
      {"length of OPTIONS", Head("OPTIONS /v1/models HTTP/1.1", length) + body, 400},
      {"gzip", PostHead("Content-Encoding: gzip\r\n" + length) + body, 415},
      {"identity, gzip", PostHead("Content-Encoding: identity, gzip\r\n" + length) + body, 415},
      {"brotli", PostHead("Content-Encoding: br\r\n" + length) + body, 415},
      {"chunks of HTTP/1.0",
       "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
       "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
  };
  const auto add_length = [&requests](const std::string& value, int status) {
    requests.push_back(
        {"length " + value, PostHead("Content-Length: " + value + "\r\n") + "abc", status});
  };
  for (const char* bad :
       {"-1", "+3", "0x3", "3%33", "3.0", "3e0", "1 2", "", "3;", "3a", "\"3\"", "\xef\xbc\x93"})
    add_length(bad, 400);
  add_length(std::string("3\0", 2), 400);
  for (const char* large : {"33554433", "4294967299", "9223372036854775808", "18446744073709551616",
                            "18446744073709551619", "99999999999999999999999999"})
    add_length(large, 413);
  for (const char* bad :
       {"xchunked", "chunked, identity", "identity, chunked", "gzip, chunked", "chunked, chunked",
        "identity", "\"chunked\"", "chunked;a=b", "", "gzip", "chunked,"}) {
    requests.push_back({std::string("encoding ") + bad,
                        PostHead(std::string("Transfer-Encoding: ") + bad + "\r\n") + "0\r\n\r\n",
                        501});
  }
  return requests;
}

inline std::vector<HostileRequest> HostileChunks() {
  const auto one = [](const std::string& size) { return ChunkedBody(size + "\r\nx\r\n0\r\n\r\n"); };
  std::vector<HostileRequest> requests = {
      {"larger than the limit", ChunkedBody("2000001\r\n"), 413},
      {"2^64 - 2", one("fffffffffffffffe"), 413},
      {"2^64 + 1", one("10000000000000001"), 413},
      {"many zeros", one(std::string(100, '0') + "1"), 400},
      {"endless size", ChunkedBody(std::string(1 << 20, '0')), 400},
      {"NUL behind the size", ChunkedBody(std::string("1\0\r\nx\r\n0\r\n\r\n", 13)), 400},
      {"bare LF behind the size", ChunkedBody("1\nx\r\n0\r\n\r\n"), 400},
      {"bare CR behind the size", ChunkedBody("1\rx\r\n0\r\n\r\n"), 400},
      {"bare LF behind the data", ChunkedBody("1\r\nx\n0\r\n\r\n"), 400},
      {"no CRLF behind the data", ChunkedBody("1\r\nx0\r\n\r\n"), 400},
      {"more data than the size", ChunkedBody("1\r\nxyz\r\n0\r\n\r\n"), 400},
      {"less data than the size", ChunkedBody("5\r\nx\r\n0\r\n\r\n"), 400},
      {"bare LF at the end", ChunkedBody("1\r\nx\r\n0\r\n\n"), 400},
      {"bare LFs at the end", ChunkedBody("1\r\nx\r\n0\n\n"), 400},
      {"trailer", ChunkedBody("1\r\nx\r\n0\r\nA: b\r\n\r\n"), 400},
      {"encoding as a trailer", ChunkedBody("0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400},
      {"length as a trailer", ChunkedBody("0\r\nContent-Length: 3\r\n\r\nabc"), 400},
      {"many trailers", ChunkedBody("0\r\n" + Repeated("A: b\r\n", 100'000) + "\r\n"), 400},
      {"extension of 70 KB", one("1;" + std::string(70'000, 'a')), 400},
      {"extension of 300 KB", one("1;" + std::string(300'000, 'a')), 400},
      {"LF in an extension", ChunkedBody("1;a\nx\r\n0\r\n\r\n"), 400},
      {"control character in an extension", one("1;\x01"), 400},
      {"NUL in an extension", ChunkedBody(std::string("1;\0\r\nx\r\n0\r\n\r\n", 14)), 400},
      {"extensions, more than data",
       ChunkedBody(Repeated("1;" + std::string(100, 'e') + "\r\nx\r\n", 2000)), 400},
      {"extension without a size", one(";a"), 400},
      {"request in place of a chunk", ChunkedBody(kSmuggled), 400},
  };
  for (const char* bad :
       {"0x1", "+1", "-1", " 1", "1 ", "\t1", "1\t", "", "g", "1.0", "1,", "#1", "\xef\xbc\x91"}) {
    requests.push_back({std::string("size ") + bad, one(bad), 400});
  }
  return requests;
}

// Returns requests that are well-formed, and that their routes refuse by their heads.
inline std::vector<HostileRequest> HostileRoutes() {
  const std::string body = kSmuggled;
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return {
      {"no length", PostHead("") + body, 400},
      {"no length, and closed", PostHead("Connection: close\r\n") + body, 400},
      {"body of an unknown route", Head("POST /nothing HTTP/1.1", length) + body, 404},
      {"body of a route without POST", Head("POST /v1/models HTTP/1.1", length) + body, 405},
      {"body of PUT", Head("PUT /v1/completions HTTP/1.1", length) + body, 405},
      {"text",
       Head("POST /v1/completions HTTP/1.1", "Content-Type: text/plain\r\n" + length) + body, 400},
      {"no type", Head("POST /v1/completions HTTP/1.1", length) + body, 400},
      {"form",
       Head("POST /v1/completions HTTP/1.1",
            "Content-Type: multipart/form-data; boundary=a\r\n" + length) +
           body,
       400},
  };
}

// Returns bodies that are read to the end and then refused. None of their ten million bytes may
// appear in the answer.
inline std::vector<HostileRequest> HostileBodies() {
  const std::string large(10'000'000, 'x');
  return {
      {"empty body", ClosingPost(""), 400},
      {"not JSON", ClosingPost("{"), 400},
      {"long token that is no JSON", ClosingPost(large), 400},
      {"long text that does not end", ClosingPost("{\"prompt\":\"" + large), 400},
      {"deep nesting", ClosingPost(std::string(1'000'000, '[')), 400},
      {"long model", ClosingPost("{\"prompt\":[1],\"model\":\"" + large + "\"}"), 404},
      {"long request id", ClosingPost("{\"prompt\":[1],\"request_id\":\"" + large + "\"}"), 400},
      {"long salt", ClosingPost("{\"prompt\":[1],\"cache_salt\":\"" + large + "\"}"), 400},
      {"long number", ClosingPost("{\"prompt\":[1],\"logprobs\":\"" + large + "\"}"), 400},
      {"long bias", ClosingPost("{\"prompt\":[1],\"logit_bias\":{\"" + large + "\":1}}"), 400},
      {"stop strings of many choices",
       ClosingPost("{\"prompt\":[1],\"max_tokens\":1,\"n\":16384,\"stop\":[\"" +
                   std::string(1000, 'a') + "\"" +
                   Repeated(",\"" + std::string(1000, 'b') + "\"", 63) + "]}"),
       400},
      {"long request id in the head",
       ClosingPost("{\"prompt\":[1]}", "X-Request-Id: " + std::string(16'000, 'i') + "\r\n"), 400},
      {"timeout that is no number", ClosingPost("{\"prompt\":[1]}", "X-Request-Timeout: soon\r\n"),
       400},
      {"timeout of nothing", ClosingPost("{\"prompt\":[1]}", "X-Request-Timeout: 0\r\n"), 400},
      {"timeout that is not a number",
       ClosingPost("{\"prompt\":[1]}", "X-Request-Timeout: nan\r\n"), 400},
  };
}

}  // namespace taopd::testing
