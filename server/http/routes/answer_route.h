// Routes of the protocols, which map a body to an answer of server/http/answer.h.
#pragma once

#include <functional>
#include <string>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/http/route.h"

namespace taopd {

using AnswerFunction = std::function<Answer(const std::string& body, const Caller& caller)>;

// Returns a POST route of kind kWork that calls `answer`.
Route AnswerRoute(const std::string& path, AnswerFunction answer);

}  // namespace taopd
