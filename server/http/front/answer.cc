#include "server/http/front/answer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <algorithm>
#include <array>

namespace taopd {
namespace {

constexpr std::array kOwnHeaders = {"connection", "content-length", "date", "keep-alive",
                                    "transfer-encoding"};

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
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
