#include "server/http/routes/answer_route.h"

#include <utility>
#include <variant>

namespace taopd {

Route AnswerRoute(const std::string& path, AnswerFunction answer) {
  const auto handle = [answer = std::move(answer)](HttpCall& call) {
    const Caller caller = {.request_id = call.request.get_header_value("X-Request-Id"),
                           .client = call.client,
                           .deadline = call.deadline,
                           .is_gone = call.is_gone,
                           .hold_memory = call.hold_memory};
    Answer answered = answer(call.request.body, caller);
    if (const HttpError* error = std::get_if<HttpError>(&answered))
      return SendError(*error, call.response);
    if (std::string* json = std::get_if<std::string>(&answered))
      return SendJson(std::move(*json), call.response);
    call.response.set_header("Cache-Control", "no-cache");
    call.response.set_chunked_content_provider(
        "text/event-stream; charset=utf-8",
        [stream = std::get<EventStream>(std::move(answered))](size_t, httplib::DataSink& sink) {
          bool is_sent = true;
          stream.run([&](std::string_view piece) {
            is_sent = is_sent && sink.write(piece.data(), piece.size());
            return is_sent;
          });
          if (is_sent) sink.done();
          return is_sent;
        });
  };
  return {"POST", path, RouteKind::kWork, handle};
}

}  // namespace taopd
