#include "server/http/protocols/protocols.h"

#include <memory>
#include <utility>

#include "server/generation/engine_requests.h"
#include "server/http/chat/chat.h"
#include "server/http/request/request_body.h"
#include "server/http/request/structured_output.h"
#include "server/http/response/answer_json.h"

namespace taopd {
namespace {

// The functions with which a protocol reads its requests and writes its answers. `Request` derives
// from GenerationRequest.
template <typename Request>
struct Protocol {
  const char* path;
  absl::Status (*read)(JsonFields& fields, const ServedModel& model, Request* request);
  // Returns an upper estimate of the whole answer's bytes.
  int64_t (*answer_bytes)(const Request& request);
  absl::StatusOr<std::string> (*write)(const Request& request, const ServedModel& model,
                                       const std::vector<InferenceResult>& results);
  void (*stream)(const Request& request, const ServedModel& model, const PromptScores& scores,
                 Generation* generation, const SendPiece& send);
  // Returns whether a stream needs the prompts' scores; if not, `stream` receives empty ones.
  bool (*streams_scores)(const Request& request) = [](const Request&) { return false; };
  // If true, the header X-Request-Id replaces the body's id.
  bool takes_header_id = true;
};

// Waits for the first token, so that an error before it is an answer of its own, and returns the
// stream that the protocol then sends. What is unfinished when it returns is cancelled.
template <typename Request>
absl::StatusOr<Answer> StreamAnswer(const Protocol<Request>& protocol, Request request,
                                    const Caller& caller,
                                    std::shared_ptr<const ServedModel> model) {
  struct Job {
    Request request;
    std::shared_ptr<const ServedModel> model;
    PromptScores scores;
    std::unique_ptr<Generation> generation;
  };
  auto job = std::make_shared<Job>(Job{std::move(request), std::move(model), {}, nullptr});
  if (protocol.streams_scores(job->request)) {
    TAOPD_ASSIGN_OR_RETURN(job->scores, ScorePrompts(job->request, caller, job->model));
  }
  job->generation =
      std::make_unique<Generation>(job->request, caller, job->model, /*streams=*/true);
  TAOPD_RETURN_IF_ERROR(job->generation->AwaitFirst());
  return EventStream{[job, stream = protocol.stream](const SendPiece& send) {
    stream(job->request, *job->model, job->scores, job->generation.get(), send);
    job->generation.reset();
  }};
}

// Turns the body of a request into its answer.
template <typename Request>
absl::StatusOr<Answer> RunProtocol(const Protocol<Request>& protocol, const std::string& body,
                                   const Caller& caller, ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(const auto model, state.Admit());
  Request request;
  TAOPD_RETURN_IF_ERROR(ReadBodyInTurn(body, caller, state, protocol.path, [&](JsonFields& fields) {
    return protocol.read(fields, *model, &request);
  }));
  if (protocol.takes_header_id && !caller.request_id.empty())
    request.request_id = caller.request_id;
  TAOPD_ASSIGN_OR_RETURN(
      auto memory,
      ReserveMemory(request, {.whole = protocol.answer_bytes(request)}, *model, caller, &state));
  caller.hold_memory(std::move(memory));
  TAOPD_RETURN_IF_ERROR(CompileGrammar(caller, *model, &request));
  request.created_unix_s = absl::ToUnixSeconds(state.clock()->Now());
  const bool generates = request.prompts.front().max_new_tokens > 0;
  if (request.stream && generates) return StreamAnswer(protocol, std::move(request), caller, model);
  Generation generation(request, caller, model, /*streams=*/false);
  TAOPD_ASSIGN_OR_RETURN(const auto results, generation.Finish());
  TAOPD_ASSIGN_OR_RETURN(std::string json, protocol.write(request, *model, results));
  if (!request.stream) return json;
  return EventStream{[event = Event(json)](const SendPiece& send) {
    if (send(event)) send(kLastEvent);
  }};
}

int64_t ChatAnswerBytes(const ChatRequest& request) {
  constexpr int64_t kBytesPerCharacter = 6;  // \u0000
  const int64_t text_bytes =
      static_cast<int64_t>(request.echoed_text.size() + request.prompt_text.size());
  return EstimateAnswerBytes(request, /*echo=*/false) + kBytesPerCharacter * text_bytes * request.n;
}

}  // namespace

absl::StatusOr<Answer> RunCompletion(const std::string& body, const Caller& caller,
                                     ServingState& state) {
  constexpr Protocol<CompletionRequest> kProtocol = {
      .path = "/v1/completions",
      .read = ReadCompletionRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, asked.echo); },
      .write = CompletionResponseJson,
      .stream = StreamCompletion,
      .streams_scores = [](const auto& asked) { return asked.echo && asked.prompt_logprobs; }};
  return RunProtocol(kProtocol, body, caller, state);
}

absl::StatusOr<Answer> RunChat(const std::string& body, const Caller& caller, ServingState& state) {
  constexpr Protocol<ChatRequest> kProtocol = {.path = "/v1/chat/completions",
                                               .read = ReadChatRequest,
                                               .answer_bytes = ChatAnswerBytes,
                                               .write = ChatResponseJson,
                                               .stream = StreamChat};
  return RunProtocol(kProtocol, body, caller, state);
}

absl::StatusOr<Answer> RunTokenGeneration(const std::string& body, const Caller& caller,
                                          ServingState& state) {
  constexpr Protocol<TokenRequest> kProtocol = {
      .path = "/inference/v1/generate",
      .read = ReadTokenRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, /*echo=*/false); },
      .write = TokenResponseJson,
      .stream = StreamTokens};
  return RunProtocol(kProtocol, body, caller, state);
}

// The events of a stream repeat everything so far, but only one of them exists at a time.
absl::StatusOr<Answer> RunSglang(const std::string& body, const Caller& caller,
                                 ServingState& state) {
  constexpr Protocol<SglangRequest> kProtocol = {
      .path = "/generate",
      .read = ReadSglangRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, /*echo=*/true); },
      .write = SglangResponseJson,
      .stream = StreamSglang,
      .streams_scores = [](const auto& asked) { return asked.return_logprob; },
      .takes_header_id = false};
  return RunProtocol(kProtocol, body, caller, state);
}

}  // namespace taopd
