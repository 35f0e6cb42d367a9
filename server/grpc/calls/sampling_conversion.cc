#include "server/grpc/calls/sampling_conversion.h"

#include <utility>

#include "common/engine/sampling/sampling_fields.h"

namespace taopd {
namespace {

using google::protobuf::FieldDescriptor;

double NumberOf(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    default:
      return static_cast<double>(reflection.GetFloat(message, &field));
  }
}

}  // namespace

absl::Status ApplySamplingNumbers(const google::protobuf::Message& message,
                                  SamplingParams* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    const FieldDescriptor* found = message.GetDescriptor()->FindFieldByName(field.name);
    if (found == nullptr || !message.GetReflection()->HasField(message, found)) continue;
    TAOPD_RETURN_IF_ERROR(SetSamplingField(field, NumberOf(message, *found), sampling));
  }
  return absl::OkStatus();
}

absl::Status ApplySamplingOptions(const v1::SamplingOptions& options, SamplingParams* sampling) {
  TAOPD_RETURN_IF_ERROR(ApplySamplingNumbers(options, sampling));
  std::vector<LogitBias::Entry> biases;
  for (const auto& [id, bias] : options.logit_bias()) {
    if (id > static_cast<uint32_t>(INT32_MAX))
      return InvalidArgument("logit_bias has the id ", id, ": must be at most ", INT32_MAX);
    biases.emplace_back(static_cast<int32_t>(id), bias);
  }
  if (!biases.empty()) sampling->logit_bias = LogitBias(std::move(biases));
  if (options.allowed_token_ids_size() > 0) {
    TAOPD_ASSIGN_OR_RETURN(sampling->allowed_token_ids,
                           TokenIds("allowed_token_ids", options.allowed_token_ids()));
  }
  return absl::OkStatus();
}

}  // namespace taopd
