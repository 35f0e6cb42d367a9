// Between the front, which knows heads and bytes, and the routes, which know cpp-httplib's Request
// and Response.
#pragma once

#include <httplib.h>

#include "server/http/front/front_handler.h"

namespace taopd {

// What the request says about its answer.
struct AnswerStyle {
  bool is_head = false;  // HEAD: no body
  bool is_http_1_1 = true;
  bool close = false;
};

// Moves the body out of the exchange. Headers about the connection are left out, and nothing of
// the request is decoded: `path` and `target` are as they came.
httplib::Request ToHttplibRequest(Exchange& exchange);

// The answer of a response with a body, or with a content provider of known length, which is run to
// its end. The response's own "Connection: close" is heeded.
WireAnswer WholeAnswer(httplib::Response& response, const AnswerStyle& style);

// The same, or, for a content provider without a length, sends the answer while it is made, in
// chunks. Returns what is left to send.
WireAnswer SendAnswer(httplib::Response& response, const AnswerStyle& style, Exchange& exchange);

}  // namespace taopd
