#include "server/http/http_response.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <exception>
#include <variant>

#include "common/base/log.h"

namespace taopd {
namespace {

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

// Returns the status line and the headers. `framing` is the header that tells where the body ends;
// it is empty for a body that ends with the connection.
std::string ResponseHead(const HttpResponse& response, const std::string& framing, bool close) {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\n");
  for (const auto& [name, value] : response.headers)
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  return head + framing + (close ? "Connection: close\r\n\r\n" : "\r\n");
}

// Returns the bytes of a chunk of a body in chunks. An empty chunk ends the body.
std::string Chunk(std::string_view data) {
  std::string chunk = absl::StrCat(absl::Hex(data.size()), "\r\n");
  chunk.append(data).append("\r\n");
  return chunk;
}

bool MustClose(const HttpResponse& response, const AnswerStyle& style) {
  return style.close || !style.is_http_1_1 || response.close;
}

// Returns false if the client is gone or the stream throws. Does not throw, because the head has
// been sent: another answer would become a part of the body.
bool StreamBody(const HttpResponse& response, bool is_chunked, Exchange& exchange) {
  bool ok = true;
  const SendPiece send = [&](std::string_view piece) {
    // An empty chunk would end the body.
    if (ok && !piece.empty()) ok = exchange.Write(is_chunked ? Chunk(piece) : std::string(piece));
    return ok;
  };
  try {
    response.stream(send);
  } catch (const std::exception& error) {
    LogError("a stream failed", {{"what", error.what()}});
    return false;
  } catch (...) {
    LogError("a stream failed", {{"what", "unknown"}});
    return false;
  }
  return ok;
}

}  // namespace

HttpResponse TextResponse(std::string content_type, std::string text) {
  return {.headers = {{"Content-Type", std::move(content_type)}}, .body = std::move(text)};
}

HttpResponse JsonResponse(std::string json, int status) {
  HttpResponse response = TextResponse("application/json", std::move(json));
  response.status = status;
  return response;
}

HttpResponse ErrorResponse(const HttpError& error) {
  HttpResponse response = JsonResponse(error.Json(), error.status);
  response.close = error.status == 503;
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse ToResponse(absl::StatusOr<Answer> answer) {
  if (!answer.ok()) return ErrorResponse(ToHttpError(answer.status()));
  if (std::string* json = std::get_if<std::string>(&*answer)) return JsonResponse(std::move(*json));
  return {.headers = {{"Cache-Control", "no-cache"},
                      {"Content-Type", "text/event-stream; charset=utf-8"}},
          .stream = std::get<EventStream>(*std::move(answer)).run};
}

WireAnswer WholeAnswer(HttpResponse response, const AnswerStyle& style) {
  WireAnswer answer;
  answer.close = MustClose(response, style);
  answer.body = std::move(response.body);
  const std::string length = absl::StrCat("Content-Length: ", answer.body.size(), "\r\n");
  answer.head = ResponseHead(response, length, answer.close);
  if (style.is_head) answer.body.clear();
  return answer;
}

WireAnswer SendAnswer(HttpResponse response, const AnswerStyle& style, Exchange& exchange) {
  if (!response.stream) return WholeAnswer(std::move(response), style);
  WireAnswer answer;
  answer.close = MustClose(response, style);
  const bool is_chunked = style.is_http_1_1;
  std::string head =
      ResponseHead(response, is_chunked ? "Transfer-Encoding: chunked\r\n" : "", answer.close);
  if (style.is_head) {
    answer.head = std::move(head);
  } else if (!exchange.Write(head) || !StreamBody(response, is_chunked, exchange)) {
    // The last chunk is left out, so that the client sees that the body is incomplete.
    answer.close = true;
  } else if (is_chunked) {
    answer.head = Chunk({});
  }
  return answer;
}

}  // namespace taopd
