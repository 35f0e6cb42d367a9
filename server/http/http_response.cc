#include "server/http/http_response.h"

#include <exception>
#include <variant>

#include "common/base/log.h"

namespace taopd {
namespace {

bool MustClose(const HttpResponse& response, const AnswerStyle& style) {
  return style.close || !style.is_http_1_1 || response.close;
}

// Returns false if the client is gone or the stream throws.
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
    // The head has left: the only thing to do is to end the connection.
    LogError("a stream failed", {{"what", error.what()}});
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
  if (!answer.ok()) return ErrorResponse(FromStatus(answer.status()));
  if (std::string* json = std::get_if<std::string>(&*answer)) return JsonResponse(std::move(*json));
  return {.headers = {{"Cache-Control", "no-cache"},
                      {"Content-Type", "text/event-stream; charset=utf-8"}},
          .stream = std::get<EventStream>(*std::move(answer)).run};
}

WireAnswer WholeAnswer(HttpResponse response, const AnswerStyle& style) {
  WireAnswer answer;
  answer.close = MustClose(response, style);
  answer.body = std::move(response.body);
  answer.head = AnswerHead(response.status, response.headers,
                           {BodyFraming::kLength, answer.body.size()}, answer.close);
  if (style.is_head) answer.body.clear();
  return answer;
}

WireAnswer SendAnswer(HttpResponse response, const AnswerStyle& style, Exchange& exchange) {
  if (!response.stream) return WholeAnswer(std::move(response), style);
  WireAnswer answer;
  answer.close = MustClose(response, style);
  const bool is_chunked = style.is_http_1_1;
  const BodyFraming framing = {is_chunked ? BodyFraming::kChunked : BodyFraming::kUntilClose};
  std::string head = AnswerHead(response.status, response.headers, framing, answer.close);
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
