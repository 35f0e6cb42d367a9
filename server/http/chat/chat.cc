#include "server/http/chat/chat.h"

#include <utility>

#include "server/http/chat/chat_request.h"
#include "server/http/chat/chat_response.h"
#include "server/http/generation/generation.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/stream_answer.h"
#include "server/http/structured/structured_output.h"

namespace taopd {

Answer RunChat(const std::string& body, const Caller& caller, ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed = ParseInTurn(body, caller, state, [&] { return ParseChatRequest(body, **model); });
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!caller.request_id.empty()) request.request_id = caller.request_id;
  const int64_t text_bytes =
      6 * static_cast<int64_t>(request.echoed_text.size() + request.prompt_text.size());
  const absl::Status reserved =
      ReserveMemory(request, EstimateAnswerBytes(request, /*echo=*/false) + text_bytes * request.n,
                    **model, caller, &state);
  if (!reserved.ok()) return FromStatus(reserved);
  if (auto error = CompileGrammar(caller, **model, &request)) return *std::move(error);
  const int64_t created_unix_s = absl::ToUnixSeconds(state.clock()->Now());
  if (request.stream) {
    return StreamAnswer(std::move(request), caller, *model,
                        [created_unix_s](const ChatRequest& asked, const ServedModel& served,
                                         std::optional<ChoiceUpdate> first, Generation* generation,
                                         const SendPiece& send) {
                          StreamChat(asked, served, created_unix_s, std::move(first), generation,
                                     send);
                        });
  }
  Generation generation(request, caller, *model, /*streams=*/false);
  const auto results = generation.Finish();
  if (!results.ok()) return FromStatus(results.status());
  auto json = ChatResponseJson(request, **model, *results, created_unix_s);
  if (!json.ok()) return FromStatus(json.status());
  return *std::move(json);
}

}  // namespace taopd
