#include "server/grpc/policy_service.h"

#include <algorithm>
#include <utility>

#include "server/grpc/calls/engine_calls.h"

namespace taopd {
namespace {

PolicyUpdate UpdateOf(const v1::SetWeightsRequest& request) {
  PolicyUpdate update;
  update.version = request.version();
  update.directory = request.directory();
  for (const v1::TensorChecksum& sum : request.checksums())
    update.sums.push_back({sum.name(), sum.sha256()});
  update.drops = request.in_flight() == v1::SEQUENCES_IN_FLIGHT_DROP;
  return update;
}

}  // namespace

UnaryCall* PolicyService::GetPolicy(CallContext* context, const CallBytes*, CallBytes* answer) {
  return AnswerInHandler<v1::GetPolicyResponse>(
      services_, context, "grpc/GetPolicy", answer,
      [&](v1::GetPolicyResponse* response) -> absl::Status {
        TAOPD_ASSIGN_OR_RETURN(const auto model, services_.state->Admit());
        TAOPD_ASSIGN_OR_RETURN(const std::string base, updates_->base_revision());
        const EngineLimits& limits = model->limits;
        if (!services_.state->are_weights_damaged()) response->set_version(model->revision);
        response->set_base_revision(base);
        response->set_dtype(model->dtype);
        response->set_max_generation_len(static_cast<uint32_t>(
            limits.can_generate ? std::min(limits.max_model_len, limits.max_generation_len) : 0));
        return absl::OkStatus();
      });
}

UnaryCall* PolicyService::SetWeights(CallContext* context, const CallBytes* request,
                                     CallBytes* answer) {
  const auto start = [&](const v1::SetWeightsRequest& message, v1::SetWeightsResponse* response,
                         const auto& end, EngineWork*) -> absl::Status {
    worker_.Enqueue(
        [this, update = UpdateOf(message), deadline = DeadlineOf(*context), response, end] {
          const absl::StatusOr<int64_t> num_changed = updates_->SetWeights(update, deadline);
          if (num_changed.ok()) {
            response->set_version(update.version);
            response->set_num_changed(static_cast<uint32_t>(*num_changed));
          }
          end(num_changed.status());
        });
    return absl::OkStatus();
  };
  return BeginUnaryCall<v1::SetWeightsRequest, v1::SetWeightsResponse>(
      context, {services_, "grpc/SetWeights"}, request, answer, start);
}

UnaryCall* PolicyService::PutWeights(CallContext* context, const CallBytes* request,
                                     CallBytes* answer) {
  const auto start = [&](v1::PutWeightsRequest& message, v1::PutWeightsResponse* response,
                         const auto& end, EngineWork*) -> absl::Status {
    worker_.Enqueue([this, message = std::move(message), response, end] {
      WeightFilePart part;
      part.version = message.version();
      part.file = message.file();
      part.offset = static_cast<int64_t>(message.offset());
      part.file_bytes = static_cast<int64_t>(message.file_bytes());
      part.data = message.data();
      part.sha256 = message.sha256();
      const absl::StatusOr<int64_t> next = updates_->PutFilePart(part);
      if (next.ok()) response->set_next_offset(static_cast<uint64_t>(*next));
      end(next.status());
    });
    return absl::OkStatus();
  };
  return BeginUnaryCall<v1::PutWeightsRequest, v1::PutWeightsResponse>(
      context, {services_, "grpc/PutWeights"}, request, answer, start);
}

}  // namespace taopd
