#include "server/http/routes/completion_routes.h"

#include <utility>
#include <variant>

#include "server/http/completion.h"

namespace taopd {

Routes CompletionRoutes(ServingState* state) {
  const auto complete = [state](HttpCall& call) {
    const CompletionCaller caller = {.request_id = call.request.get_header_value("X-Request-Id"),
                                     .address = call.client,
                                     .deadline = call.deadline,
                                     .is_gone = call.is_gone,
                                     .hold_memory = call.hold_memory};
    auto answer = RunCompletion(call.request.body, caller, *state);
    if (const HttpError* error = std::get_if<HttpError>(&answer)) {
      return SendError(*error, call.response);
    }
    SendJson(std::get<std::string>(std::move(answer)), call.response);
  };
  return {{"POST", "/v1/completions", RouteKind::kWork, complete}};
}

}  // namespace taopd
