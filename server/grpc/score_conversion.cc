#include "server/grpc/score_conversion.h"

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "common/wire/teacher_protocol.h"

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

void AddAll(const std::vector<float>& values, google::protobuf::RepeatedField<float>* out) {
  out->Add(values.begin(), values.end());
}
void AddAll(const std::vector<int32_t>& values, google::protobuf::RepeatedField<uint32_t>* out) {
  out->Reserve(static_cast<int>(values.size()));
  for (int32_t value : values) out->AddAlreadyReserved(static_cast<uint32_t>(value));
}

}  // namespace

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
  info.set_max_top_k(static_cast<uint32_t>(model.limits.max_logprobs));
  info.set_max_candidates(static_cast<uint32_t>(model.limits.max_candidates));
  info.set_max_dense_vocab_size(static_cast<uint32_t>(model.limits.max_dense_vocab_size));
  for (const int32_t id : model.eos_token_ids) info.add_eos_token_ids(static_cast<uint32_t>(id));
  info.set_dtype(model.dtype);
  info.set_supports_temperature(true);
  info.set_protocol_version(kTeacherProtocolVersion);
  return info;
}

absl::Time DeadlineOf(const CallContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

std::string PeerAddress(const std::string& peer) {
  if (peer.starts_with("unix-abstract:taopd/")) return peer.substr(peer.rfind('/') + 1);
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if ((!peer.starts_with("ipv4:") && !peer.starts_with("ipv6:")) || port == scheme) return peer;
  std::string address = peer.substr(scheme + 1, port - scheme - 1);
  constexpr std::string_view kOpen = "%5B", kClose = "%5D";
  if (address.starts_with(kOpen)) address.erase(0, kOpen.size());
  if (address.ends_with(kClose)) address.resize(address.size() - kClose.size());
  if (address.starts_with('[')) address.erase(0, 1);
  if (address.ends_with(']')) address.pop_back();
  return address;
}

void AddRetryPushback(const absl::Status& status, CallContext* context) {
  if (!absl::IsResourceExhausted(status)) return;
  context->AddTrailingMetadata(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
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
