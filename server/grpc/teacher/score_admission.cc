#include "server/grpc/teacher/score_admission.h"

#include <limits>
#include <utility>
#include <vector>

#include "common/engine/request_validation.h"
#include "common/wire/teacher_protocol.h"
#include "server/generation/request_fields.h"
#include "server/grpc/calls/sampling_conversion.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

// Copies a number of a message. Returns INVALID_ARGUMENT, naming it, if `out` cannot hold it.
absl::Status CopyNumber(const char* field, uint32_t value, int32_t* out) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  if (value > kMax) return InvalidArgument(field, " is ", value, ": must be at most ", kMax);
  *out = static_cast<int32_t>(value);
  return absl::OkStatus();
}

// Returns the request as the engine takes it. A temperature of 0 becomes 1. Returns
// INVALID_ARGUMENT for a number that the engine's types cannot hold, naming the field and the
// value; every other check is left to ValidateRequest.
absl::StatusOr<InferenceRequest> ToInferenceRequest(const v1::ScoreRequest& request,
                                                    const Caller& caller) {
  InferenceRequest out;
  out.request_id = request.request_id();
  out.client = caller.client;
  out.deadline = caller.deadline;
  TAOPD_ASSIGN_OR_RETURN(out.token_ids, TokenIds("token_ids", request.token_ids()));
  ScoreParams score;
  score.start = request.score_start();
  TAOPD_RETURN_IF_ERROR(CopyNumber("top_k", request.top_k(), &score.top_k));
  score.temperature = request.temperature() == 0.0f ? 1.0f : request.temperature();
  score.entropy = request.options().entropy();
  score.rank = request.options().rank();
  score.support_stats = request.options().support_stats();
  score.dense = request.options().dense();
  TAOPD_RETURN_IF_ERROR(
      CopyNumber("num_candidates", request.num_candidates(), &score.num_candidates));
  TAOPD_ASSIGN_OR_RETURN(score.candidate_ids, TokenIds("candidate_ids", request.candidate_ids()));
  out.score = std::move(score);
  return out;
}

template <typename Number, typename WireNumber>
void AddAll(const std::vector<Number>& values, google::protobuf::RepeatedField<WireNumber>* out) {
  out->Add(values.begin(), values.end());
}

// REQUIRES: the request is valid, so the product does not overflow.
int64_t ReplyBytes(const InferenceRequest& request, const EngineLimits& limits) {
  const ScoreParams& score = *request.score;
  const int64_t num_rows = static_cast<int64_t>(request.token_ids.size()) - score.start;
  const ScoreReplyFields fields = {.top_k = score.top_k,
                                   .num_candidates = score.num_candidates,
                                   .entropy = score.entropy,
                                   .rank = score.rank,
                                   .support_stats = score.support_stats,
                                   .dense_vocab_size = score.dense ? limits.vocab_size : 0};
  return ScoreReplyArrayBytes(fields, num_rows) + kScoreReplyOverheadBytes;
}

absl::Status CheckReplyBytes(int64_t num_bytes, const InferenceRequest& request,
                             const EngineLimits& limits) {
  if (num_bytes <= kMaxMessageBytes) return absl::OkStatus();
  const ScoreParams& score = *request.score;
  return InvalidArgument("top_k ", score.top_k, ", num_candidates ", score.num_candidates,
                         score.dense ? Concat(" and dense over ", limits.vocab_size) : "", " for ",
                         static_cast<int64_t>(request.token_ids.size()) - score.start,
                         " rows need a response of ", num_bytes, " bytes, the limit is ",
                         kMaxMessageBytes);
}

}  // namespace

absl::Status CheckIdAndRevision(const std::string& request_id, const std::string& expected_revision,
                                const ServedModel& model) {
  TAOPD_RETURN_IF_ERROR(CheckRequestId("request_id", request_id));
  if (expected_revision.empty() || expected_revision == model.revision) return absl::OkStatus();
  return FailedPrecondition("expected_revision ", Excerpt(expected_revision), " is not served, ",
                            model.revision, " is");
}

absl::StatusOr<AdmittedRequest> AdmitScore(const v1::ScoreRequest& request, const Caller& caller,
                                           ServingState& state) {
  AdmittedRequest admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  const EngineLimits& limits = admitted.model->limits;
  TAOPD_RETURN_IF_ERROR(
      CheckIdAndRevision(request.request_id(), request.expected_revision(), *admitted.model));
  TAOPD_ASSIGN_OR_RETURN(InferenceRequest inference, ToInferenceRequest(request, caller));
  TAOPD_RETURN_IF_ERROR(ValidateRequest(inference, limits));
  const int64_t reply_bytes = ReplyBytes(inference, limits);
  TAOPD_RETURN_IF_ERROR(CheckReplyBytes(reply_bytes, inference, limits));
  // The engine's arrays and the message are alive together while one is copied into the other.
  const int64_t token_bytes = 8 * static_cast<int64_t>(inference.token_ids.size());
  TAOPD_ASSIGN_OR_RETURN(admitted.answer_memory,
                         state.ReserveAnswer(2 * reply_bytes + token_bytes, caller.client));
  admitted.requests.push_back(std::move(inference));
  return admitted;
}

v1::ScoreResponse ToScoreResponse(const std::string& request_id, const std::string& revision,
                                  const ScoreRows& rows) {
  v1::ScoreResponse response;
  response.set_request_id(request_id);
  response.set_revision(revision);
  response.set_top_k(static_cast<uint32_t>(rows.top_k));
  AddAll(rows.ids, response.mutable_ids());
  AddAll(rows.log_probs, response.mutable_logprobs());
  AddAll(rows.log_tail, response.mutable_log_tail());
  AddAll(rows.sampled_log_probs, response.mutable_sampled_logprobs());
  AddAll(rows.sampled_ranks, response.mutable_sampled_ranks());
  AddAll(rows.entropy, response.mutable_entropy());
  AddAll(rows.candidate_log_probs, response.mutable_candidate_logprobs());
  AddAll(rows.log_support_mass, response.mutable_log_support_mass());
  AddAll(rows.log_sum_exp, response.mutable_log_sum_exp());
  AddAll(rows.candidate_log_tail, response.mutable_candidate_log_tail());
  AddAll(rows.dense_log_probs, response.mutable_dense_logprobs());
  return response;
}

}  // namespace taopd
