#include "server/http/chat/chat.h"

#include "server/http/chat/chat_request.h"
#include "server/http/chat/chat_response.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/run_dialect.h"

namespace taopd {
namespace {

int64_t ChatAnswerBytes(const ChatRequest& request) {
  constexpr int64_t kBytesPerCharacter = 6;  // \u0000
  const int64_t text_bytes =
      static_cast<int64_t>(request.echoed_text.size() + request.prompt_text.size());
  return EstimateAnswerBytes(request, /*echo=*/false) + kBytesPerCharacter * text_bytes * request.n;
}

}  // namespace

Answer RunChat(const std::string& body, const Caller& caller, ServingState& state) {
  constexpr Dialect<ChatRequest> kDialect = {.parse = ParseChatRequest,
                                             .answer_bytes = ChatAnswerBytes,
                                             .write = ChatResponseJson,
                                             .stream = StreamChat,
                                             .streams_scores = [](const auto&) { return false; }};
  return RunDialect(kDialect, body, caller, state);
}

}  // namespace taopd
