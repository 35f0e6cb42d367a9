// An answer as the bytes that are sent.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taopd {

struct WireAnswer {
  std::string head;  // with the empty line
  std::string body;
  bool close = false;  // the connection ends after it; its head says so
};

// How the end of a body is told.
struct BodyFraming {
  enum Kind { kLength, kChunked, kUntilClose } kind = kLength;
  size_t length = 0;  // for kLength
};

// The status line and headers of an answer. Names and values must not hold line breaks: a header
// that does is left out. Content-Length, Transfer-Encoding, Connection and Date come from the
// arguments, not from `headers`.
std::string AnswerHead(int status, const std::vector<std::pair<std::string, std::string>>& headers,
                       BodyFraming framing, bool close);

// The bytes of a chunk of a body with BodyFraming::kChunked. An empty chunk ends the body.
std::string Chunk(std::string_view data);

}  // namespace taopd
