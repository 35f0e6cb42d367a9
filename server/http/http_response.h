// The response of a route, and the bytes that the front sends for it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/front/front_handler.h"
#include "server/http/http_error.h"
#include "server/http/response/answer.h"

namespace taopd {

struct HttpResponse {
  int status = 200;
  // Content-Type and others, never from a client's text. The front adds those about the connection
  // and the body's length.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  // If it is set, it makes the body while it is sent, and `body` is not used (EventStream::run).
  std::function<void(const SendPiece&)> stream = nullptr;
  bool close = false;  // the connection ends after the response
};

HttpResponse TextResponse(std::string content_type, std::string text);
HttpResponse JsonResponse(std::string json, int status = 200);
// Returns the error with the headers that its status asks for: Retry-After for 429 and 503, and the
// end of the connection for 503.
HttpResponse ErrorResponse(const HttpError& error);
HttpResponse ToResponse(absl::StatusOr<Answer> answer);

// The properties of a request that its answer depends on.
struct AnswerStyle {
  bool is_head = false;  // HEAD: no body
  bool is_http_1_1 = true;
  bool close = false;
};

// Returns the answer to send for a response that has no stream.
WireAnswer WholeAnswer(HttpResponse response, const AnswerStyle& style);

// Sends a stream in chunks while it is made, and returns what is left to send. A response without
// a stream is returned whole, as by WholeAnswer. If the stream throws, the last chunk is missing
// and the connection ends.
WireAnswer SendAnswer(HttpResponse response, const AnswerStyle& style, Exchange& exchange);

}  // namespace taopd
