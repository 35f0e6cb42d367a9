#include "server/http/front/answer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <algorithm>
#include <array>
#include <utility>

namespace taopd {
namespace {

constexpr std::array kOwnHeaders = {"connection", "content-length", "date", "keep-alive",
                                    "transfer-encoding"};

constexpr std::pair<int, const char*> kReasonPhrases[] = {
    {200, "OK"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const char* ReasonPhrase(int status) {
  for (const auto& [known, phrase] : kReasonPhrases) {
    if (known == status) return phrase;
  }
  return "Unknown";
}

bool HasLineBreak(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos;
}

}  // namespace

std::string AnswerHead(int status, const std::vector<std::pair<std::string, std::string>>& headers,
                       BodyFraming framing, bool close) {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", status, " ", ReasonPhrase(status),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\n");
  for (const auto& [name, value] : headers) {
    const bool is_own = std::any_of(kOwnHeaders.begin(), kOwnHeaders.end(), [&](const char* own) {
      return absl::EqualsIgnoreCase(name, own);
    });
    if (is_own || HasLineBreak(name) || HasLineBreak(value)) continue;
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (framing.kind == BodyFraming::kLength) {
    absl::StrAppend(&head, "Content-Length: ", framing.length, "\r\n");
  } else if (framing.kind == BodyFraming::kChunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (close) head += "Connection: close\r\n";
  return head + "\r\n";
}

std::string Chunk(std::string_view data) {
  std::string chunk = absl::StrCat(absl::Hex(data.size()), "\r\n");
  chunk.append(data).append("\r\n");
  return chunk;
}

}  // namespace taopd
