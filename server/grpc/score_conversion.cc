#include "server/grpc/score_conversion.h"

#include <cmath>
#include <utility>

namespace taopd {
namespace {

constexpr size_t kMaxRequestIdBytes = 1024;
// Framing, field headers and the revision: what a response holds beside its arrays.
constexpr int64_t kResponseOverheadBytes = 4096;

template <typename Ids>
absl::Status CopyTokenIds(const char* field, const Ids& ids, int64_t vocab_size,
                          std::vector<int32_t>* out) {
  out->reserve(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    const uint32_t id = ids.Get(i);
    if (id >= vocab_size) {
      return InvalidArgument(field, "[", i, "] = ", id, " is not below the vocabulary size ",
                             vocab_size);
    }
    out->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

int64_t ResponseBytes(const v1::ScoreRequest& request, int64_t vocab_size) {
  const v1::ScoreOptions& options = request.options();
  const int64_t words_per_row = 2 * int64_t{request.top_k()} + 2 + request.num_candidates() +
                                (request.num_candidates() > 0) + options.entropy() +
                                options.rank() + 2 * options.support_stats() +
                                (options.dense() ? vocab_size : 0);
  return (request.token_ids_size() - int64_t{request.score_start()}) * words_per_row * 4 +
         kResponseOverheadBytes;
}

absl::Status CheckResponseSize(const v1::ScoreRequest& request, int64_t num_rows,
                               int64_t vocab_size) {
  const int64_t bytes = ResponseBytes(request, vocab_size);
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return InvalidArgument("top_k ", request.top_k(), ", num_candidates ", request.num_candidates(),
                         request.options().dense() ? Concat(" and dense over ", vocab_size) : "",
                         " for ", num_rows, " rows need a response of ", bytes,
                         " bytes, the limit is ", kMaxMessageBytes);
}

void AddAll(const std::vector<float>& values, google::protobuf::RepeatedField<float>* out) {
  out->Add(values.begin(), values.end());
}
void AddAll(const std::vector<int32_t>& values, google::protobuf::RepeatedField<uint32_t>* out) {
  out->Reserve(static_cast<int>(values.size()));
  for (int32_t value : values) out->AddAlreadyReserved(static_cast<uint32_t>(value));
}

}  // namespace

absl::StatusOr<InferenceRequest> ToInferenceRequest(const v1::ScoreRequest& request,
                                                    const ServedModel& model, absl::Time deadline) {
  const EngineLimits& limits = model.limits;
  const int64_t num_tokens = request.token_ids_size();
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return InvalidArgument("request_id has ", request.request_id().size(), " bytes, the limit is ",
                           kMaxRequestIdBytes);
  }
  if (!request.expected_revision().empty() && request.expected_revision() != model.revision) {
    return FailedPrecondition("expected_revision ", request.expected_revision(), " is not served, ",
                              model.revision, " is");
  }
  if (num_tokens < 2)
    return InvalidArgument("token_ids has ", num_tokens, " ids, at least 2 are needed");
  if (num_tokens > limits.max_model_len) {
    return InvalidArgument("token_ids has ", num_tokens, " ids, more than max_model_len ",
                           limits.max_model_len);
  }
  if (request.score_start() < 1 || request.score_start() >= num_tokens) {
    return InvalidArgument("score_start ", request.score_start(), " is not in [1, ", num_tokens,
                           ")");
  }
  if (request.top_k() > static_cast<uint32_t>(limits.max_top_k)) {
    return InvalidArgument("top_k ", request.top_k(), " exceeds max_logprobs ", limits.max_top_k);
  }
  if (request.top_k() > limits.vocab_size) {
    return InvalidArgument("top_k ", request.top_k(), " exceeds the vocabulary size ",
                           limits.vocab_size);
  }
  const float temperature = request.temperature() == 0.0f ? 1.0f : request.temperature();
  if (!std::isfinite(temperature) || temperature < 0.0f) {
    return InvalidArgument("temperature ", request.temperature(), " is not a positive number");
  }
  if (request.num_candidates() > static_cast<uint32_t>(limits.max_candidates)) {
    return InvalidArgument("num_candidates ", request.num_candidates(), " exceeds the limit ",
                           limits.max_candidates);
  }
  if (request.options().dense() && limits.vocab_size > limits.max_dense_vocab_size) {
    return InvalidArgument("options.dense: the vocabulary of ", limits.vocab_size,
                           " exceeds max_dense_vocab_size ", limits.max_dense_vocab_size);
  }
  const int64_t num_rows = num_tokens - request.score_start();
  const int64_t num_candidate_ids = num_rows * request.num_candidates();
  if (request.candidate_ids_size() != num_candidate_ids) {
    return InvalidArgument("candidate_ids has ", request.candidate_ids_size(), " ids, ", num_rows,
                           " rows of ", request.num_candidates(), " need ", num_candidate_ids);
  }
  TAOPD_RETURN_IF_ERROR(CheckResponseSize(request, num_rows, limits.vocab_size));

  InferenceRequest out;
  out.request_id = request.request_id();
  out.deadline = deadline;
  TAOPD_RETURN_IF_ERROR(
      CopyTokenIds("token_ids", request.token_ids(), limits.vocab_size, &out.token_ids));
  ScoreParams score;
  score.start = request.score_start();
  score.top_k = static_cast<int32_t>(request.top_k());
  score.temperature = temperature;
  score.entropy = request.options().entropy();
  score.rank = request.options().rank();
  score.support_stats = request.options().support_stats();
  score.dense = request.options().dense();
  score.num_candidates = static_cast<int32_t>(request.num_candidates());
  TAOPD_RETURN_IF_ERROR(CopyTokenIds("candidate_ids", request.candidate_ids(), limits.vocab_size,
                                     &score.candidate_ids));
  out.score = std::move(score);
  return out;
}

int64_t AnswerMemoryBytes(const v1::ScoreRequest& request, const EngineLimits& limits) {
  return 2 * ResponseBytes(request, limits.vocab_size) + 8 * int64_t{request.token_ids_size()};
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

v1::GetTeacherInfoResponse ToTeacherInfo(const ServedModel& model) {
  v1::GetTeacherInfoResponse info;
  info.set_model_name(model.name);
  info.set_revision(model.revision);
  if (model.tokenizer != nullptr) {
    info.set_tokenizer_hash(model.tokenizer->hash());
    info.set_tokenizer_vocab_size(static_cast<uint32_t>(model.tokenizer->vocab_size()));
  }
  info.set_head_vocab_size(static_cast<uint32_t>(model.limits.vocab_size));
  info.set_max_model_len(static_cast<uint32_t>(model.limits.max_model_len));
  info.set_max_top_k(static_cast<uint32_t>(model.MaxTopK()));
  info.set_max_candidates(static_cast<uint32_t>(model.limits.max_candidates));
  info.set_max_dense_vocab_size(static_cast<uint32_t>(model.limits.max_dense_vocab_size));
  info.set_dtype(model.dtype);
  info.set_supports_temperature(true);
  info.set_protocol_version(kProtocolVersion);
  return info;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  // The numbers of absl::StatusCode are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

std::string StatusCodeName(const absl::Status& status) {
  return absl::StatusCodeToString(status.code());
}

}  // namespace taopd
