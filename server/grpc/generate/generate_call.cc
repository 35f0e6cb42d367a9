#include "server/grpc/generate/generate_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/engine/request_validation.h"
#include "common/wire/teacher_protocol.h"
#include "server/grpc/generate/sampling_conversion.h"
#include "server/grpc/score_conversion.h"
#include "server/serving/sampling_fields.h"

namespace taopd {
namespace {

// Of a token in messages and in the engine's arrays, both of which are alive for a moment.
constexpr int64_t kBytesPerToken = 2 * (4 + 4 + 4);
// Of a message that waits to be sent, with one token.
constexpr int64_t kBytesPerMessage = 256;

absl::StatusOr<InferenceRequest> ToSequence(const v1::GenerateRequest& request,
                                            const ServedModel& model) {
  InferenceRequest out;
  out.request_id = request.request_id();
  out.cache_salt = request.cache_salt();
  TAOPD_ASSIGN_OR_RETURN(out.token_ids, TokenIds("token_ids", request.token_ids()));
  SamplingParams sampling = model.sampling_defaults;
  TAOPD_RETURN_IF_ERROR(ApplySamplingOptions(request.sampling(), &sampling));
  sampling.max_new_tokens = request.max_new_tokens();
  sampling.min_tokens = request.min_new_tokens();
  TAOPD_ASSIGN_OR_RETURN(sampling.stop_token_ids,
                         TokenIds("stop_token_ids", request.stop_token_ids()));
  sampling.ignore_eos = request.ignore_eos();
  sampling.log_probs = true;
  sampling.raw_log_probs = request.raw_logprobs();
  out.sampling = std::move(sampling);
  return out;
}

absl::Status CheckHeader(const v1::GenerateRequest& request, const ServedModel& model) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return InvalidArgument("request_id has ", request.request_id().size(), " bytes, the limit is ",
                           kMaxRequestIdBytes);
  }
  if (request.n() > kMaxSequencesPerCall)
    return InvalidArgument("n is ", request.n(), ", the limit is ", kMaxSequencesPerCall);
  TAOPD_RETURN_IF_ERROR(CheckSalt(request.cache_salt()));
  const std::string& expected = request.expected_revision();
  if (!expected.empty() && expected != model.revision) {
    return FailedPrecondition("expected_revision ", expected.substr(0, kMaxRequestIdBytes),
                              " is not served, ", model.revision, " is");
  }
  return absl::OkStatus();
}

// The last of the tokens so far.
v1::GenerateResponse TokenMessage(const std::string& request_id, size_t index, bool with_raw,
                                  const GeneratedTokens& so_far) {
  v1::GenerateResponse message;
  message.set_request_id(request_id);
  message.set_index(static_cast<uint32_t>(index));
  message.add_token_ids(static_cast<uint32_t>(so_far.ids.back()));
  message.add_logprobs(so_far.log_probs.back());
  if (with_raw) message.add_raw_logprobs(so_far.raw_log_probs.back());
  return message;
}

v1::GenerateResponse LastMessage(const std::string& request_id, const std::string& revision,
                                 size_t index, const GeneratedTokens& tokens, bool with_tokens) {
  v1::GenerateResponse message;
  message.set_request_id(request_id);
  message.set_index(static_cast<uint32_t>(index));
  message.set_revision(revision);
  message.set_finish_reason(tokens.finish == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                                 : v1::FINISH_REASON_LENGTH);
  if (!with_tokens) return message;
  message.mutable_token_ids()->Add(tokens.ids.begin(), tokens.ids.end());
  message.mutable_logprobs()->Add(tokens.log_probs.begin(), tokens.log_probs.end());
  message.mutable_raw_logprobs()->Add(tokens.raw_log_probs.begin(), tokens.raw_log_probs.end());
  return message;
}

EngineEvents EventsOf(const v1::GenerateRequest& request, const std::string& revision,
                      const std::shared_ptr<MessageStream<v1::GenerateResponse>>& stream) {
  EngineEvents events;
  const std::string request_id = request.request_id();
  if (request.stream_tokens()) {
    events.on_token = [stream, request_id, with_raw = request.raw_logprobs()](
                          size_t index, const GeneratedTokens& so_far, bool) {
      stream->Send(TokenMessage(request_id, index, with_raw, so_far));
    };
  }
  events.on_result = [stream, request_id, revision, with_tokens = !request.stream_tokens()](
                         size_t index, InferenceResult result) {
    stream->Send(LastMessage(request_id, revision, index, *result.generated, with_tokens));
  };
  events.on_end = [stream](const absl::Status& status) { stream->End(status); };
  return events;
}

}  // namespace

absl::StatusOr<AdmittedGeneration> AdmitGeneration(const v1::GenerateRequest& request,
                                                   absl::Time deadline, const std::string& client,
                                                   ServingState& state) {
  AdmittedGeneration admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  TAOPD_RETURN_IF_ERROR(CheckHeader(request, *admitted.model));
  TAOPD_ASSIGN_OR_RETURN(InferenceRequest sequence, ToSequence(request, *admitted.model));
  sequence.deadline = deadline;
  sequence.client = client;
  TAOPD_RETURN_IF_ERROR(ValidateRequest(sequence, admitted.model->limits));
  const int64_t n = std::max<uint32_t>(request.n(), 1);
  const int64_t num_new = sequence.sampling->max_new_tokens;
  if (num_new * kBytesPerToken > kMaxMessageBytes) {
    return InvalidArgument("max_new_tokens ", num_new, " may need a message of ",
                           num_new * kBytesPerToken, " bytes, the limit is ", kMaxMessageBytes);
  }
  const int64_t per_token = kBytesPerToken + (request.stream_tokens() ? kBytesPerMessage : 0);
  const int64_t messages_bytes = n * (num_new * per_token + kBytesPerMessage);
  TAOPD_ASSIGN_OR_RETURN(const int64_t copies_bytes, CopiesBytes(sequence, {}, n));
  TAOPD_ASSIGN_OR_RETURN(admitted.answer_memory,
                         state.ReserveAnswer(messages_bytes + copies_bytes, client));
  const std::optional<uint64_t> seed =
      request.has_seed() ? std::optional<uint64_t>(request.seed()) : std::nullopt;
  admitted.requests.assign(static_cast<size_t>(n), sequence);
  for (size_t i = 0; i < admitted.requests.size(); ++i) {
    admitted.requests[i].sampling->seed = SequenceSeed(seed, i);
    admitted.requests[i].num_choices = i == 0 ? n : 0;
  }
  return admitted;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* BeginGenerate(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          const CallEnvironment& environment) {
  using Stream = std::shared_ptr<MessageStream<v1::GenerateResponse>>;
  const auto start = [&](const v1::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(
        AdmittedGeneration admitted,
        AdmitGeneration(message, DeadlineOf(*context), ClientOf(environment.services, *context),
                        *environment.services.state));
    work->model = std::move(admitted.model);
    work->answer_memory = std::move(admitted.answer_memory);
    work->run = std::make_shared<EngineRun>(work->model->engine.get(),
                                            EventsOf(message, work->model->revision, stream));
    work->run->Start(std::move(admitted.requests));
    return absl::OkStatus();
  };
  return BeginStreamedCall<v1::GenerateRequest, v1::GenerateResponse>(context, environment, request,
                                                                      start);
}

}  // namespace taopd
