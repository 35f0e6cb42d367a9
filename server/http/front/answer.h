// An answer in the form in which it is sent.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace taopd {

struct WireAnswer {
  std::string head;  // including the empty line
  std::string body;
  bool close = false;  // the connection ends after the answer, as its head says
};

// The way in which the end of a body is marked.
struct BodyFraming {
  enum Kind { kLength, kChunked, kUntilClose } kind = kLength;
  size_t length = 0;  // for kLength
};

// Returns the status line and headers of an answer. A header whose name or value contains a line
// break is left out. Content-Length, Transfer-Encoding, Connection and Date come from the
// arguments, not from `headers`.
std::string AnswerHead(int status, const std::vector<std::pair<std::string, std::string>>& headers,
                       BodyFraming framing, bool close);

// Returns the bytes of a chunk of a body with BodyFraming::kChunked. An empty chunk ends the body.
std::string Chunk(std::string_view data);

}  // namespace taopd
