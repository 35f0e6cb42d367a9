// The head of an HTTP/1.x request: the request line and the headers, checked strictly. RFC 9112
// lets a server repair many malformed heads; two programs that repair them differently see
// different requests in the same bytes, so that here everything ambiguous is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace taopd {

struct RequestLimits {
  size_t max_head_bytes = 64 << 10;
  size_t max_target_bytes = 8 << 10;
  size_t max_header_bytes = 16 << 10;  // of one line
  int max_headers = 100;
  size_t max_body_bytes = 32 << 20;
  size_t max_chunk_extension_bytes = 128;  // of one chunk
};

// Why a request is not answered by a route. Its connection is closed after the answer: nobody knows
// where the next request begins.
struct Refusal {
  int status = 400;
  std::string message;
};

struct Header {
  std::string name;   // as it came
  std::string value;  // without spaces and tabs at both ends
};

struct RequestHead {
  std::string method;
  std::string target;  // "/path?query", as it came
  bool is_http_1_1 = true;
  bool keep_alive = true;         // what the client asks for
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool is_chunked = false;
  uint64_t content_length = 0;  // if it is not chunked
  // What the client says to the server, without the headers about the connection and the framing of
  // the body: those are the members above.
  std::vector<Header> headers;

  bool has_body() const { return is_chunked || content_length > 0; }
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  // The value of the first header of that name, in any case; null if there is none.
  const std::string* Find(std::string_view name) const;
};

// Whether two names of headers, or other ASCII tokens, are equal but for the case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

// `text` without the spaces and tabs at both ends.
std::string_view TrimSpaces(std::string_view text);

// `text` is everything before the empty line, with the CRLF of its last line. The caller has
// checked that lines end with CRLF and hold no other control characters than tabs.
std::variant<RequestHead, Refusal> ParseRequestHead(std::string_view text,
                                                    const RequestLimits& limits);

}  // namespace taopd
