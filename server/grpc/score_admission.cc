#include "server/grpc/score_admission.h"

#include <utility>

#include "common/engine/request_validation.h"
#include "common/wire/teacher_protocol.h"
#include "server/grpc/score_conversion.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

absl::Status CheckRequestId(const v1::ScoreRequest& request) {
  if (request.request_id().size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return InvalidArgument("request_id has ", request.request_id().size(), " bytes, the limit is ",
                         kMaxRequestIdBytes);
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
  TAOPD_RETURN_IF_ERROR(CheckRequestId(request));
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

}  // namespace taopd
