#include "server/grpc/teacher/generate_call.h"

#include <algorithm>
#include <utility>

#include "common/wire/teacher_protocol.h"
#include "server/generation/engine_requests.h"
#include "server/generation/request_fields.h"
#include "server/grpc/calls/sampling_conversion.h"
#include "server/grpc/teacher/score_admission.h"

namespace taopd {
namespace {

// The size of a token in messages and in the engine's arrays, which exist together for a moment.
constexpr int64_t kBytesPerToken = 2 * (4 + 4 + 4);
// The size of a message with one token that waits to be sent, without its texts.
constexpr int64_t kBytesPerMessage = 256;

// Unlike the other protocols, this one does not cut max_new_tokens: an answer that is shorter than
// was asked for would change what a trainer learns from (teacher.proto).
absl::StatusOr<GenerationRequest> ToGenerationRequest(const v1::GenerateRequest& request,
                                                      const ServedModel& model) {
  GenerationRequest out;
  out.request_id = request.request_id();
  TAOPD_RETURN_IF_ERROR(CheckCacheSalt(request.cache_salt()));
  out.cache_salt = request.cache_salt();
  out.n = std::max<int64_t>(request.n(), 1);
  TAOPD_RETURN_IF_ERROR(CheckNumChoices(out.n));
  if (request.has_seed()) out.seed = request.seed();
  if (request.max_new_tokens() == 0) return InvalidArgument("max_new_tokens 0 must be at least 1");
  GenerationPrompt& prompt = out.prompts.emplace_back();
  prompt.max_new_tokens = request.max_new_tokens();
  TAOPD_ASSIGN_OR_RETURN(prompt.token_ids, TokenIds("token_ids", request.token_ids()));
  SamplingParams& sampling = out.sampling;
  sampling = model.sampling_defaults;
  TAOPD_RETURN_IF_ERROR(ApplySamplingOptions(request.sampling(), &sampling));
  sampling.min_tokens = request.min_new_tokens();
  TAOPD_ASSIGN_OR_RETURN(sampling.stop_token_ids,
                         TokenIds("stop_token_ids", request.stop_token_ids()));
  sampling.ignore_eos = request.ignore_eos();
  sampling.log_probs = true;
  sampling.raw_log_probs = request.raw_logprobs();
  if (request.num_top_ids() > static_cast<uint32_t>(model.limits.max_logprobs)) {
    return InvalidArgument("num_top_ids ", request.num_top_ids(), " exceeds max_logprobs ",
                           model.limits.max_logprobs);
  }
  sampling.num_log_probs = static_cast<int32_t>(request.num_top_ids());
  sampling.top_log_probs_mode = LogProbsMode::kProcessed;
  return out;
}

v1::GenerateResponse TokensMessage(const std::string& request_id, const std::string& revision,
                                   size_t index, const GeneratedTokens& tokens) {
  v1::GenerateResponse message;
  message.set_request_id(request_id);
  message.set_revision(revision);
  message.set_index(static_cast<uint32_t>(index));
  message.mutable_token_ids()->Add(tokens.ids.begin(), tokens.ids.end());
  message.mutable_logprobs()->Add(tokens.log_probs.begin(), tokens.log_probs.end());
  message.mutable_raw_logprobs()->Add(tokens.raw_log_probs.begin(), tokens.raw_log_probs.end());
  message.mutable_top_ids()->Add(tokens.top_ids.begin(), tokens.top_ids.end());
  return message;
}

EngineEvents EventsOf(const v1::GenerateRequest& request, const std::string& revision,
                      const std::shared_ptr<MessageStream<v1::GenerateResponse>>& stream) {
  EngineEvents events;
  const std::string request_id = request.request_id();
  if (request.stream_tokens()) {
    events.on_update = [stream, request_id, revision](const ChoiceUpdate& update) {
      stream->Send(TokensMessage(request_id, revision, update.choice, update.tokens));
    };
  }
  events.on_result = [stream, request_id, revision, with_tokens = !request.stream_tokens()](
                         size_t index, const InferenceResult& result) {
    const GeneratedTokens& tokens = *result.generated;
    v1::GenerateResponse message =
        TokensMessage(request_id, revision, index, with_tokens ? tokens : GeneratedTokens());
    message.set_finish_reason(tokens.finish == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                                   : v1::FINISH_REASON_LENGTH);
    stream->Send(std::move(message));
  };
  events.on_end = [stream](const absl::Status& status) { stream->End(status); };
  return events;
}

}  // namespace

absl::StatusOr<AdmittedRequest> AdmitGeneration(const v1::GenerateRequest& request,
                                                const Caller& caller, ServingState& state) {
  AdmittedRequest admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  const ServedModel& model = *admitted.model;
  TAOPD_RETURN_IF_ERROR(
      CheckIdAndRevision(request.request_id(), request.expected_revision(), model));
  TAOPD_ASSIGN_OR_RETURN(const GenerationRequest generation, ToGenerationRequest(request, model));
  TAOPD_RETURN_IF_ERROR(ValidateChoices(generation, model.limits));
  const int64_t num_new = generation.prompts[0].max_new_tokens;
  const int64_t message_bytes = num_new * (kBytesPerToken + 4 * int64_t{request.num_top_ids()});
  if (message_bytes > kMaxMessageBytes) {
    return InvalidArgument("max_new_tokens ", num_new, " may need a message of ", message_bytes,
                           " bytes, the limit is ", kMaxMessageBytes);
  }
  const auto per_message =
      kBytesPerMessage + static_cast<int64_t>(request.request_id().size() + model.revision.size());
  // The alternatives' ids and log-probs, and the ids in the message.
  const int64_t per_token = kBytesPerToken + 12 * int64_t{request.num_top_ids()} +
                            (request.stream_tokens() ? per_message : 0);
  const int64_t waiting_bytes = generation.n * (num_new * per_token + per_message);
  TAOPD_ASSIGN_OR_RETURN(
      admitted.answer_memory,
      ReserveMemory(generation, {.waiting_messages = waiting_bytes}, model, caller, &state));
  admitted.requests = EngineRequests(generation, caller, model, /*scores=*/false);
  return admitted;
}

StreamedCall* BeginGenerate(CallContext* context, const CallBytes* request,
                            const CallEnvironment& environment) {
  using Stream = std::shared_ptr<MessageStream<v1::GenerateResponse>>;
  const auto start = [&](const v1::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(AdmittedRequest admitted,
                           AdmitGeneration(message, CallerOf(environment.services, *context),
                                           *environment.services.state));
    EngineEvents events = EventsOf(message, admitted.model->revision, stream);
    work->Start(std::move(admitted), std::move(events), environment.services.delivery);
    return absl::OkStatus();
  };
  return BeginStreamedCall<v1::GenerateRequest, v1::GenerateResponse>(context, environment, request,
                                                                      start);
}

}  // namespace taopd
