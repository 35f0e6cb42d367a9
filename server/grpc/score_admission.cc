#include "server/grpc/score_admission.h"

#include <limits>
#include <utility>
#include <vector>

#include "common/engine/request_validation.h"
#include "common/wire/teacher_protocol.h"
#include "server/generation/request_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

// Copies a wire's unsigned number into an engine's signed one.
absl::Status Convert(const char* field, uint32_t value, int32_t* out) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  if (value > kMax) return InvalidArgument(field, " is ", value, ": must be at most ", kMax);
  *out = static_cast<int32_t>(value);
  return absl::OkStatus();
}

template <typename Ids>
absl::Status ConvertIds(const char* field, const Ids& ids, std::vector<int32_t>* out) {
  out->resize(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    const absl::Status status = Convert("", ids.Get(i), &(*out)[static_cast<size_t>(i)]);
    if (!status.ok()) return InvalidArgument(field, "[", i, "]", status.message());
  }
  return absl::OkStatus();
}

// The request as the engine takes it. A temperature of 0 becomes 1. Returns INVALID_ARGUMENT for a
// number that the engine's types cannot hold, naming the field and the value; every other check is
// left to ValidateRequest.
absl::StatusOr<InferenceRequest> ToInferenceRequest(const v1::ScoreRequest& request,
                                                    absl::Time deadline) {
  InferenceRequest out;
  out.request_id = request.request_id();
  out.deadline = deadline;
  TAOPD_RETURN_IF_ERROR(ConvertIds("token_ids", request.token_ids(), &out.token_ids));
  ScoreParams score;
  score.start = request.score_start();
  TAOPD_RETURN_IF_ERROR(Convert("top_k", request.top_k(), &score.top_k));
  score.temperature = request.temperature() == 0.0f ? 1.0f : request.temperature();
  score.entropy = request.options().entropy();
  score.rank = request.options().rank();
  score.support_stats = request.options().support_stats();
  score.dense = request.options().dense();
  TAOPD_RETURN_IF_ERROR(Convert("num_candidates", request.num_candidates(), &score.num_candidates));
  TAOPD_RETURN_IF_ERROR(ConvertIds("candidate_ids", request.candidate_ids(), &score.candidate_ids));
  out.score = std::move(score);
  return out;
}

void AddAll(const std::vector<float>& values, google::protobuf::RepeatedField<float>* out) {
  out->Add(values.begin(), values.end());
}
void AddAll(const std::vector<int32_t>& values, google::protobuf::RepeatedField<uint32_t>* out) {
  out->Reserve(static_cast<int>(values.size()));
  for (int32_t value : values) out->AddAlreadyReserved(static_cast<uint32_t>(value));
}

absl::Status CheckRevision(const v1::ScoreRequest& request, const ServedModel& model) {
  const std::string& expected = request.expected_revision();
  if (expected.empty() || expected == model.revision) return absl::OkStatus();
  return FailedPrecondition("expected_revision ", Excerpt(expected), " is not served, ",
                            model.revision, " is");
}

// REQUIRES: the request is valid, so that the product does not overflow.
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

absl::StatusOr<AdmittedScore> AdmitScore(const v1::ScoreRequest& request, absl::Time deadline,
                                         const std::string& client, ServingState& state) {
  AdmittedScore admitted;
  TAOPD_ASSIGN_OR_RETURN(admitted.model, state.Admit());
  const EngineLimits& limits = admitted.model->limits;
  TAOPD_RETURN_IF_ERROR(CheckRequestId("request_id", request.request_id()));
  TAOPD_RETURN_IF_ERROR(CheckRevision(request, *admitted.model));
  TAOPD_ASSIGN_OR_RETURN(admitted.request, ToInferenceRequest(request, deadline));
  admitted.request.client = client;
  TAOPD_RETURN_IF_ERROR(ValidateRequest(admitted.request, limits));
  const int64_t reply_bytes = ReplyBytes(admitted.request, limits);
  TAOPD_RETURN_IF_ERROR(CheckReplyBytes(reply_bytes, admitted.request, limits));
  // The engine's arrays and the message are alive together while one is copied into the other.
  const int64_t token_bytes = 8 * static_cast<int64_t>(admitted.request.token_ids.size());
  TAOPD_ASSIGN_OR_RETURN(admitted.answer_memory,
                         state.ReserveAnswer(2 * reply_bytes + token_bytes, client));
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
