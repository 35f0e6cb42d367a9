// The head of an HTTP/1.x request: the request line and the headers, checked strictly. RFC 9112
// lets a server repair many malformed heads. Two programs that repair them differently see
// different requests in the same bytes, so everything ambiguous is refused here.
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
  size_t max_header_bytes = 16 << 10;  // limit of one line
  int max_headers = 100;
  size_t max_body_bytes = 32 << 20;
  size_t max_chunk_extension_bytes = 128;  // limit of one chunk
};

// The reason why a request is not answered by a route. Its connection is closed after the answer,
// because the start of the next request is unknown.
struct Refusal {
  int status = 400;
  std::string message;
};

struct Header {
  std::string name;   // unchanged
  std::string value;  // trimmed of spaces and tabs
};

struct RequestHead {
  std::string method;
  std::string target;  // "/path?query", unchanged
  bool is_http_1_1 = true;
  bool keep_alive = true;         // the client's request
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool is_chunked = false;
  uint64_t content_length = 0;  // unless the body is chunked
  // The client's headers, without those about the connection and the framing of the body, which are
  // in the members above.
  std::vector<Header> headers;

  bool has_body() const { return is_chunked || content_length > 0; }
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  // Returns the value of the first header with that name, in any letter case, or null if there is
  // none.
  const std::string* Find(std::string_view name) const;
};

// Returns whether two header names, or other ASCII tokens, are equal except for letter case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

// Returns `text` without the spaces and tabs at both ends.
std::string_view TrimSpaces(std::string_view text);

// `text` is everything before the empty line, with the CRLF of its last line. REQUIRES: lines end
// with CRLF and contain no control characters except tabs.
std::variant<RequestHead, Refusal> ParseRequestHead(std::string_view text,
                                                    const RequestLimits& limits);

}  // namespace taopd
