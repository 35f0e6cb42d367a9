// Routes of the protocols: a body in, an answer of server/http/answer.h out.
#pragma once

#include <functional>
#include <string>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/http/route.h"

namespace taopd {

using AnswerFunction = std::function<Answer(const std::string& body, const Caller& caller)>;

// A POST route of kind kWork that answers what the function does.
Route AnswerRoute(const std::string& path, AnswerFunction answer);

}  // namespace taopd
