#include "server/http/parser/request_head.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/base/status.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using MaybeRefusal = std::optional<Refusal>;

constexpr size_t kMaxMethodBytes = 16;
constexpr size_t kMaxPortDigits = 5;

// Methods that a route can have or that deserve "405 Method Not Allowed".
constexpr std::array kMethods = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"};

// Headers that must not be repeated, because readers of the first and of the last one would
// disagree.
constexpr std::array kSingleHeaders = {
    "authorization", "content-encoding",  "content-length", "content-type",      "expect",
    "host",          "transfer-encoding", "x-request-id",   "x-request-timeout",
};

// Headers about the connection or the framing of the body, which are not passed on. They include
// offers to change the protocol: RFC 9110, 7.8 lets a server ignore them, and clients that make
// them (curl --http2, Java's HttpClient) continue in HTTP/1.1.
constexpr std::array kConnectionHeaders = {
    "connection", "content-length",    "expect",  "http2-settings",
    "keep-alive", "proxy-connection",  "te",      "trailer",
    "trailers",   "transfer-encoding", "upgrade",
};

// The Connection header must not name these, because that would ask a proxy to drop them.
constexpr std::array kNotOfConnection = {"authorization", "content-length", "content-type", "host",
                                         "transfer-encoding"};

template <size_t N>
bool Contains(const std::array<const char*, N>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* other) { return EqualsIgnoringCase(name, other); });
}

bool IsTokenChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

Refusal BadRequest(const std::string& message) { return {400, message}; }

// Removes the next line from `text` and returns it without its CRLF.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find("\r\n");
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 2);
  return line;
}

MaybeRefusal CheckTarget(std::string_view target, const RequestLimits& limits) {
  if (target.size() > limits.max_target_bytes) {
    return Refusal{414, Concat("the request target has ", target.size(), " bytes, the limit is ",
                               limits.max_target_bytes)};
  }
  if (target.empty() || target.front() != '/') {
    return BadRequest(
        Concat("the request target must begin with a slash, got \"", Excerpt(target), "\""));
  }
  for (size_t i = 0; i < target.size(); ++i) {
    const char c = target[i];
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)) || c == '#' || c == '\\') {
      return BadRequest("the request target holds a character that must be percent-encoded");
    }
    if (c != '%') continue;
    const std::string_view digits = target.substr(i + 1, 2);
    if (digits.size() < 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1])) || digits == "00") {
      return BadRequest("the request target holds a wrong percent-encoding");
    }
  }
  return std::nullopt;
}

MaybeRefusal ParseVersion(std::string_view version, RequestHead* head) {
  const auto digit = [&](size_t i) {
    return absl::ascii_isdigit(static_cast<unsigned char>(version[i]));
  };
  if (version.size() != 8 || version.substr(0, 5) != "HTTP/" || !digit(5) || version[6] != '.' ||
      !digit(7)) {
    return BadRequest(
        Concat("the request line does not end with an HTTP version, but with ", Excerpt(version)));
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Refusal{505, Concat(version, " is not supported, only HTTP/1.1 and HTTP/1.0 are")};
  }
  head->is_http_1_1 = version == "HTTP/1.1";
  head->keep_alive = head->is_http_1_1;
  return std::nullopt;
}

MaybeRefusal ParseRequestLine(std::string_view line, const RequestLimits& limits,
                              RequestHead* head) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(line), absl::MaxSplits(' ', 3));
  if (parts.size() != 3) {
    return BadRequest(
        "the request line must be a method, a target and a version with single spaces");
  }
  if (!IsToken(parts[0]) || parts[0].size() > kMaxMethodBytes) {
    return BadRequest(Concat("not a method: ", Excerpt(parts[0])));
  }
  if (MaybeRefusal refusal = ParseVersion(parts[2], head)) return refusal;
  if (std::find(kMethods.begin(), kMethods.end(), parts[0]) == kMethods.end()) {
    return Refusal{501, Concat("the method ", Excerpt(parts[0]), " is not known")};
  }
  if (MaybeRefusal refusal = CheckTarget(parts[1], limits)) return refusal;
  head->method = parts[0];
  head->target = parts[1];
  return std::nullopt;
}

MaybeRefusal ParseHeaders(std::string_view text, const RequestLimits& limits, RequestHead* head) {
  while (!text.empty()) {
    const std::string_view line = TakeLine(&text);
    if (static_cast<int>(head->headers.size()) == limits.max_headers) {
      return Refusal{431, Concat("more than ", limits.max_headers, " headers")};
    }
    if (line.size() > limits.max_header_bytes) {
      return Refusal{431, Concat("a header has more than ", limits.max_header_bytes, " bytes")};
    }
    const size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    // This also refuses continuation lines, which begin with a space, and spaces before the colon.
    if (colon == std::string_view::npos || !IsToken(name)) {
      return BadRequest(Concat("not a header: ", Excerpt(line)));
    }
    if (Contains(kSingleHeaders, name) && head->Find(name) != nullptr) {
      return BadRequest(Concat("more than one ", Excerpt(name), " header"));
    }
    head->headers.push_back({std::string(name), std::string(TrimSpaces(line.substr(colon + 1)))});
  }
  return std::nullopt;
}

// Returns whether `host` is a name, an IPv4 address, or another address in brackets, possibly
// followed by a port. All parts may be empty except an address in brackets.
bool IsHost(std::string_view host) {
  const auto is_name_char = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-._~%!$&'()*+,;=").find(c) != std::string_view::npos;
  };
  const bool has_brackets = host.starts_with('[');
  const size_t end = has_brackets ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string_view::npos || (has_brackets && end == 1)) return false;
  const std::string_view name = host.substr(has_brackets, end - has_brackets);
  const bool good_name = std::all_of(name.begin(), name.end(), [&](char c) {
    return is_name_char(c) || (has_brackets && c == ':');
  });
  host.remove_prefix(end + has_brackets);
  if (host.empty() || !good_name) return good_name;
  const std::string_view port = host.substr(1);
  return host.front() == ':' && port.size() <= kMaxPortDigits &&
         std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
}

MaybeRefusal CheckHost(const RequestHead& head) {
  const std::string* host = head.Find("host");
  if (host == nullptr) {
    if (!head.is_http_1_1) return std::nullopt;
    return BadRequest("the Host header is missing");
  }
  if (!IsHost(*host)) return BadRequest(Concat("not a host: ", Excerpt(*host)));
  return std::nullopt;
}

MaybeRefusal ReadConnection(RequestHead* head) {
  for (const Header& header : head->headers) {
    if (!EqualsIgnoringCase(header.name, "connection")) continue;
    const std::vector<std::string> parts = absl::StrSplit(header.value, ',');
    for (const std::string& part : parts) {
      const std::string_view token = TrimSpaces(part);
      if (token.empty()) continue;
      if (!IsToken(token) || Contains(kNotOfConnection, token)) {
        return BadRequest(Concat("the Connection header must not name ", Excerpt(token)));
      }
      // HTTP/1.0 clients get one answer per connection, whatever they request.
      if (EqualsIgnoringCase(token, "close")) head->keep_alive = false;
    }
  }
  return std::nullopt;
}

MaybeRefusal ReadLength(RequestHead* head, const RequestLimits& limits) {
  const std::string* length = head->Find("content-length");
  const std::string* encoding = head->Find("transfer-encoding");
  if (encoding != nullptr) {
    if (length != nullptr) return BadRequest("both Content-Length and Transfer-Encoding are given");
    if (!head->is_http_1_1) return BadRequest("HTTP/1.0 has no Transfer-Encoding");
    if (!EqualsIgnoringCase(*encoding, "chunked")) {
      return Refusal{501, Concat("Transfer-Encoding must be chunked, got ", Excerpt(*encoding))};
    }
    head->is_chunked = true;
  }
  if (length == nullptr) return std::nullopt;
  const char* begin = length->data();
  const auto [end, error] = std::from_chars(begin, begin + length->size(), head->content_length);
  const bool digits =
      !length->empty() && std::all_of(length->begin(), length->end(), absl::ascii_isdigit);
  if (!digits) return BadRequest(Concat("Content-Length must be a number, got ", Excerpt(*length)));
  if (error != std::errc() || head->content_length > limits.max_body_bytes) {
    return Refusal{413, Concat("the body has ", Excerpt(*length), " bytes, the limit is ",
                               limits.max_body_bytes)};
  }
  return std::nullopt;
}

MaybeRefusal CheckBody(RequestHead* head) {
  const bool takes_body =
      head->method == "POST" || head->method == "PUT" || head->method == "PATCH";
  if (!takes_body && head->has_body()) {
    return BadRequest(Concat("a ", head->method, " request must have no body"));
  }
  // Without a length the body is empty (RFC 9112, 6.3). The following bytes are nevertheless not
  // read as a request: a client that forgot the length may have sent a body that looks like one.
  if (takes_body && !head->is_chunked && head->Find("content-length") == nullptr) {
    head->keep_alive = false;
  }
  const std::string* encoding = head->Find("content-encoding");
  if (encoding != nullptr && !EqualsIgnoringCase(*encoding, "identity")) {
    return Refusal{415, Concat("Content-Encoding ", Excerpt(*encoding), " is not supported")};
  }
  return std::nullopt;
}

MaybeRefusal CheckFeatures(RequestHead* head) {
  if (head->Find("range") != nullptr || head->Find("if-range") != nullptr) {
    return Refusal{416, "answers are not sent in ranges"};
  }
  if (const std::string* expect = head->Find("expect")) {
    if (!EqualsIgnoringCase(*expect, "100-continue")) {
      return Refusal{417, Concat("Expect: ", Excerpt(*expect), " is not supported")};
    }
    head->expects_continue = head->is_http_1_1 && head->has_body();
  }
  return std::nullopt;
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase({a.data(), a.size()}, {b.data(), b.size()});
}

std::string_view TrimSpaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

const std::string* RequestHead::Find(std::string_view name) const {
  for (const Header& header : headers) {
    if (EqualsIgnoringCase(header.name, name)) return &header.value;
  }
  return nullptr;
}

std::variant<RequestHead, Refusal> ParseRequestHead(std::string_view text,
                                                    const RequestLimits& limits) {
  RequestHead head;
  const std::string_view request_line = TakeLine(&text);
  MaybeRefusal refusal = ParseRequestLine(request_line, limits, &head);
  if (!refusal) refusal = ParseHeaders(text, limits, &head);
  if (!refusal) refusal = CheckHost(head);
  if (!refusal) refusal = ReadConnection(&head);
  if (!refusal) refusal = ReadLength(&head, limits);
  if (!refusal) refusal = CheckFeatures(&head);
  if (!refusal) refusal = CheckBody(&head);
  if (refusal) return *std::move(refusal);
  std::erase_if(head.headers,
                [](const Header& header) { return Contains(kConnectionHeaders, header.name); });
  return head;
}

}  // namespace taopd
