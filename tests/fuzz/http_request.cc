// Fuzz entry: the bytes of a connection. The parser reads the same requests however the bytes are
// cut, keeps within its limits, and reads nothing after a refusal.
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/status.h"
#include "server/http/parser/request_parser.h"

namespace {

using taopd::RequestParser;

constexpr taopd::RequestLimits kLimits = {.max_head_bytes = 2000,
                                          .max_target_bytes = 200,
                                          .max_header_bytes = 500,
                                          .max_headers = 20,
                                          .max_body_bytes = 3000,
                                          .max_chunk_extension_bytes = 16};

void CheckRequest(const taopd::ParsedRequest& request) {
  TAOPD_CHECK(request.body.size() <= kLimits.max_body_bytes);
  TAOPD_CHECK(request.head.target.starts_with('/'));
  TAOPD_CHECK(request.head.headers.size() <= static_cast<size_t>(kLimits.max_headers));
  TAOPD_CHECK(request.head.is_chunked || request.body.size() == request.head.content_length);
  for (const taopd::Header& header : request.head.headers) {
    TAOPD_CHECK(!header.name.empty());
    for (const char c : header.name + header.value) TAOPD_CHECK(c == '\t' || (c & 0xe0) != 0);
  }
}

// All requests as one text, and how the bytes end.
std::string Read(std::string_view bytes, size_t piece) {
  RequestParser parser(kLimits);
  std::string all;
  while (!bytes.empty()) {
    const size_t taken = parser.Consume(bytes.substr(0, piece));
    bytes.remove_prefix(taken);
    if (parser.state() == RequestParser::State::kRefused) {
      TAOPD_CHECK(parser.Consume(bytes) == 0);
      return taopd::Concat(all, "refused ", parser.refusal().status);
    }
    if (parser.state() == RequestParser::State::kDone) {
      const taopd::ParsedRequest request = parser.Take();
      CheckRequest(request);
      all += taopd::Concat(request.head.method, " ", request.head.target, " ", request.body, "\n");
    } else {
      TAOPD_CHECK(taken > 0);
    }
  }
  return all + (parser.has_begun() ? "begun" : "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string whole = Read(bytes, size);
  TAOPD_CHECK(Read(bytes, 1) == whole);
  TAOPD_CHECK(Read(bytes, 7) == whole);
  return 0;
}
