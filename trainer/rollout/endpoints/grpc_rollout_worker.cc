// A worker that is a taopd-teacher with --trainable: its services taopd.v1.Policy and
// taopd.v1.Teacher.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/sampling/sampling_fields.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/wire/teacher_protocol.h"
#include "proto/taopd/v1/policy.grpc.pb.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "trainer/net/grpc_channel.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"

namespace taopd {
namespace {

// The time limit of a call that the server answers immediately.
constexpr absl::Duration kShortTimeout = absl::Seconds(10);
// A file's transfer fails, with the server's message, after more refusals in a row than this.
constexpr int kMaxRefusedParts = 5;

// Explains the error of a server that takes no weights.
absl::Status ExplainUnimplemented(const absl::Status& status) {
  if (!absl::IsUnimplemented(status)) return status;
  return FailedPrecondition(
      "the server takes no weights; it must be a taopd-teacher that was started with --trainable");
}

template <typename T>
absl::Status CheckSame(const char* what, const T& server, const T& run) {
  if (server == run) return absl::OkStatus();
  return FailedPrecondition(what, " ", server, " of the server is not the student's ", run);
}

absl::Status CheckFits(const v1::GetTeacherInfoResponse& info, const v1::GetPolicyResponse& policy,
                       const RolloutNeeds& needs) {
  if (info.protocol_version() != kTeacherProtocolVersion) {
    return FailedPrecondition("protocol_version ", info.protocol_version(),
                              " of the server is not known; this client speaks version ",
                              kTeacherProtocolVersion);
  }
  TAOPD_RETURN_IF_ERROR(CheckSame<int64_t>("vocabulary", info.head_vocab_size(), needs.vocab_size));
  TAOPD_RETURN_IF_ERROR(CheckSame("dtype", policy.dtype(), needs.dtype));
  const std::vector<int32_t> eos(info.eos_token_ids().begin(), info.eos_token_ids().end());
  if (eos != needs.eos_token_ids) {
    return FailedPrecondition(
        "the server's end-of-sequence ids are not the student's: start it with the student's "
        "model directory");
  }
  if (needs.has_adapters)
    TAOPD_RETURN_IF_ERROR(CheckSame("base", policy.base_revision(), needs.base_revision));
  if (policy.max_generation_len() < needs.max_model_len) {
    return FailedPrecondition(
        "the server generates sequences of at most ", policy.max_generation_len(),
        " tokens, data.max_prompt_length + data.max_response_length is ", needs.max_model_len);
  }
  if (static_cast<int64_t>(info.max_top_k()) < needs.sampling.num_log_probs) {
    return FailedPrecondition("the server's max_logprobs ", info.max_top_k(),
                              " is below the student's top k ", needs.sampling.num_log_probs);
  }
  return absl::OkStatus();
}

// Sets every sampling number of the protocol, because the server's model may have other defaults.
void SetSamplingNumbers(const SamplingParams& sampling, v1::SamplingOptions* options) {
  const google::protobuf::Reflection& reflection = *options->GetReflection();
  for (const SamplingField& field : SamplingFields()) {
    const auto* found = options->GetDescriptor()->FindFieldByName(field.name);
    if (found == nullptr) continue;  // a field of the request itself, such as min_tokens
    if (field.is_integer) {
      reflection.SetInt32(options, found, static_cast<int32_t>(field.get(sampling)));
    } else {
      reflection.SetFloat(options, found, static_cast<float>(field.get(sampling)));
    }
  }
}

v1::GenerateRequest ToProto(const RolloutRequest& request, const std::string& version) {
  const SamplingParams& sampling = request.sampling;
  v1::GenerateRequest proto;
  proto.mutable_token_ids()->Add(request.prompt_ids.begin(), request.prompt_ids.end());
  proto.set_n(1);
  SetSamplingNumbers(sampling, proto.mutable_sampling());
  proto.set_max_new_tokens(static_cast<uint32_t>(sampling.max_new_tokens));
  proto.set_seed(sampling.seed);
  proto.set_expected_revision(version);
  proto.set_num_top_ids(static_cast<uint32_t>(sampling.num_log_probs));
  return proto;
}

absl::StatusOr<WorkerRollout> ToRollout(const v1::GenerateResponse& reply) {
  if (reply.finish_reason() != v1::FINISH_REASON_STOP &&
      reply.finish_reason() != v1::FINISH_REASON_LENGTH) {
    return DataLoss("finish_reason ", static_cast<int>(reply.finish_reason()), " is not known");
  }
  WorkerRollout rollout;
  rollout.response_ids.assign(reply.token_ids().begin(), reply.token_ids().end());
  rollout.behavior_log_probs.assign(reply.logprobs().begin(), reply.logprobs().end());
  rollout.top_ids.assign(reply.top_ids().begin(), reply.top_ids().end());
  rollout.finish =
      reply.finish_reason() == v1::FINISH_REASON_STOP ? FinishReason::kStop : FinishReason::kLength;
  rollout.version = reply.revision();
  return rollout;
}

// A call with a time limit and the API key, which `stop` cancels.
struct Call {
  Call(const std::string& api_key, absl::Duration timeout, const std::stop_token& stop)
      : cancel(stop, [this] { context.TryCancel(); }) {
    PrepareGrpcCall(api_key, timeout, &context);
  }

  grpc::ClientContext context;
  const std::stop_callback<std::function<void()>> cancel;
};

// Threads: as RolloutWorker.
class GrpcRolloutWorker final : public RolloutWorker {
 public:
  // The size of the parts in which files are sent.
  static constexpr int64_t kPartBytes = int64_t{4} << 20;

  GrpcRolloutWorker(const RolloutWorkerOptions& options, const TlsPem& pem);

  const std::string& address() const override { return options_.address; }
  absl::Status Check(const RolloutNeeds& needs, const std::stop_token& stop) override;
  absl::Status SetWeights(const PolicyWeights& weights, const std::stop_token& stop) override;
  absl::StatusOr<WorkerRollout> Generate(const RolloutRequest& request,
                                         const PolicyWeights& weights,
                                         const std::stop_token& stop) override;

 private:
  absl::Status SendFiles(const PolicyWeights& weights, const std::stop_token& stop);
  absl::Status SendFile(const PolicyWeights& weights, const std::string& name,
                        const std::stop_token& stop);
  // Returns next_offset.
  absl::StatusOr<int64_t> Put(const v1::PutWeightsRequest& part, const std::stop_token& stop);

  const RolloutWorkerOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Policy::Stub> policy_;
  const std::unique_ptr<v1::Teacher::Stub> teacher_;
};

GrpcRolloutWorker::GrpcRolloutWorker(const RolloutWorkerOptions& options, const TlsPem& pem)
    : options_(options),
      channel_(MakeGrpcChannel(
          "dns:///" + options.server.address,
          {options.server.tls, pem, kMaxMessageBytes, absl::Milliseconds(100), absl::Seconds(2)})),
      policy_(v1::Policy::NewStub(channel_)),
      teacher_(v1::Teacher::NewStub(channel_)) {}

absl::Status GrpcRolloutWorker::Check(const RolloutNeeds& needs, const std::stop_token& stop) {
  const absl::Duration timeout = std::min(kShortTimeout, options_.timeout);
  Call policy_call(options_.api_key, timeout, stop), info_call(options_.api_key, timeout, stop);
  v1::GetPolicyResponse policy;
  TAOPD_RETURN_IF_ERROR(
      ExplainUnimplemented(ToAbsl(policy_->GetPolicy(&policy_call.context, {}, &policy))));
  v1::GetTeacherInfoResponse info;
  TAOPD_RETURN_IF_ERROR(ToAbsl(teacher_->GetTeacherInfo(&info_call.context, {}, &info)));
  return CheckFits(info, policy, needs);
}

absl::Status GrpcRolloutWorker::SetWeights(const PolicyWeights& weights,
                                           const std::stop_token& stop) {
  const bool is_sent = options_.transfer == WeightTransfer::kStream;
  v1::SetWeightsRequest request;
  request.set_version(weights.version);
  if (is_sent) {
    Call call(options_.api_key, std::min(kShortTimeout, options_.timeout), stop);
    v1::GetPolicyResponse policy;
    TAOPD_RETURN_IF_ERROR(ToAbsl(policy_->GetPolicy(&call.context, {}, &policy)));
    if (policy.version() == weights.version) return absl::OkStatus();
    TAOPD_RETURN_IF_ERROR(SendFiles(weights, stop));
  } else {
    request.set_directory(weights.directory);
  }
  for (const TensorSum& sum : weights.sums) {
    v1::TensorChecksum* checksum = request.add_checksums();
    checksum->set_name(sum.name);
    checksum->set_sha256(sum.sha256);
  }
  if (options_.on_update == OnUpdate::kRestart) request.set_in_flight(v1::SEQUENCES_IN_FLIGHT_DROP);
  Call call(options_.api_key, options_.timeout, stop);
  v1::SetWeightsResponse response;
  const absl::Status set = ToAbsl(policy_->SetWeights(&call.context, request, &response));
  if (absl::IsNotFound(set) && is_sent)  // the server has started again
    return Unavailable(set.message());
  if (absl::IsNotFound(set)) {
    return FailedPrecondition("the server does not see the weights (", set.message(),
                              "): let rollout.weights_dir be a directory that it shares, or set "
                              "rollout.weight_transfer = stream");
  }
  return set;
}

absl::Status GrpcRolloutWorker::SendFiles(const PolicyWeights& weights,
                                          const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const auto names, ListDirectory(weights.directory));
  for (const std::string& name : names) TAOPD_RETURN_IF_ERROR(SendFile(weights, name, stop));
  return absl::OkStatus();
}

absl::Status GrpcRolloutWorker::SendFile(const PolicyWeights& weights, const std::string& name,
                                         const std::stop_token& stop) {
  const std::string path = weights.directory + "/" + name;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Internal(path, ": cannot be read");
  const auto file_bytes = static_cast<int64_t>(file.tellg());
  v1::PutWeightsRequest part;
  part.set_version(weights.version);
  part.set_file(name);
  part.set_file_bytes(static_cast<uint64_t>(file_bytes));
  TAOPD_ASSIGN_OR_RETURN(int64_t offset, Put(part, stop));  // continues where an earlier call ended
  int num_refused = 0;
  while (offset < file_bytes) {
    std::string data(static_cast<size_t>(std::min(kPartBytes, file_bytes - offset)), '\0');
    file.seekg(offset);
    if (!file.read(data.data(), static_cast<std::streamsize>(data.size())))
      return Internal(path, ": cannot be read");
    part.set_offset(static_cast<uint64_t>(offset));
    part.set_sha256(Sha256Hex(data));
    part.set_data(std::move(data));
    const absl::StatusOr<int64_t> next = Put(part, stop);
    if (next.ok()) {
      // Otherwise the same bytes might be sent forever.
      if (*next <= offset || *next > file_bytes) {
        return DataLoss(name, ": the server's next_offset is ", *next, " after a part at ", offset,
                        " of ", file_bytes, " bytes");
      }
      offset = *next;
      num_refused = 0;
      continue;
    }
    // A part that was damaged on its way, or that the server did not expect, is sent again.
    const bool may_try = absl::IsDataLoss(next.status()) || absl::IsOutOfRange(next.status());
    if (!may_try || ++num_refused > kMaxRefusedParts) return Annotate(next.status(), name);
    part.clear_data();
    TAOPD_ASSIGN_OR_RETURN(offset, Put(part, stop));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> GrpcRolloutWorker::Put(const v1::PutWeightsRequest& part,
                                               const std::stop_token& stop) {
  Call call(options_.api_key, options_.timeout, stop);
  v1::PutWeightsResponse response;
  TAOPD_RETURN_IF_ERROR(ToAbsl(policy_->PutWeights(&call.context, part, &response)));
  return static_cast<int64_t>(response.next_offset());
}

absl::StatusOr<WorkerRollout> GrpcRolloutWorker::Generate(const RolloutRequest& request,
                                                          const PolicyWeights& weights,
                                                          const std::stop_token& stop) {
  Call call(options_.api_key, options_.timeout, stop);
  const auto reader = teacher_->Generate(&call.context, ToProto(request, weights.version));
  v1::GenerateResponse reply, last;
  int num_replies = 0;
  while (reader->Read(&reply)) {
    last = std::move(reply);
    ++num_replies;
  }
  const absl::Status status = ToAbsl(reader->Finish());
  // The server has other weights.
  if (absl::IsFailedPrecondition(status)) return absl::AbortedError(status.message());
  TAOPD_RETURN_IF_ERROR(status);
  if (num_replies != 1)
    return DataLoss(num_replies, " messages came for a sequence that is not streamed");
  return ToRollout(last);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RolloutWorker>> MakeGrpcRolloutWorker(
    const RolloutWorkerOptions& options) {
  if (options.transfer == WeightTransfer::kNccl) {
    return InvalidArgument(
        "rollout.weight_transfer = nccl needs vLLM; a taopd-teacher takes directory or stream");
  }
  TAOPD_ASSIGN_OR_RETURN(const TlsPem pem, ReadTlsPem(options));
  return std::make_unique<GrpcRolloutWorker>(options, pem);
}

}  // namespace taopd
