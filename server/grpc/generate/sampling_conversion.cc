#include "server/grpc/generate/sampling_conversion.h"

#include <string_view>
#include <utility>
#include <vector>

#include "server/serving/sampling_fields.h"

namespace taopd {

absl::Status SetSampling(const char* name, double value, SamplingParams* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    if (std::string_view(field.name) == name) return SetSamplingField(field, value, sampling);
  }
  return Internal("no sampling field ", name);
}

absl::Status ApplySamplingOptions(const v1::SamplingOptions& options, SamplingParams* sampling) {
  const auto set = [sampling](bool is_set, const char* name, double value) {
    return is_set ? SetSampling(name, value, sampling) : absl::OkStatus();
  };
  TAOPD_RETURN_IF_ERROR(set(options.has_temperature(), "temperature", options.temperature()));
  TAOPD_RETURN_IF_ERROR(set(options.has_top_p(), "top_p", options.top_p()));
  TAOPD_RETURN_IF_ERROR(set(options.has_top_k(), "top_k", options.top_k()));
  TAOPD_RETURN_IF_ERROR(set(options.has_min_p(), "min_p", options.min_p()));
  TAOPD_RETURN_IF_ERROR(
      set(options.has_repetition_penalty(), "repetition_penalty", options.repetition_penalty()));
  TAOPD_RETURN_IF_ERROR(
      set(options.has_presence_penalty(), "presence_penalty", options.presence_penalty()));
  TAOPD_RETURN_IF_ERROR(
      set(options.has_frequency_penalty(), "frequency_penalty", options.frequency_penalty()));
  std::vector<LogitBias::Entry> biases;
  for (const auto& [id, bias] : options.logit_bias()) {
    if (id > static_cast<uint32_t>(INT32_MAX))
      return InvalidArgument("logit_bias has the id ", id, ": must be at most ", INT32_MAX);
    biases.emplace_back(static_cast<int32_t>(id), bias);
  }
  sampling->logit_bias = LogitBias(std::move(biases));
  if (options.allowed_token_ids_size() > 0) {
    TAOPD_ASSIGN_OR_RETURN(sampling->allowed_token_ids,
                           TokenIds("allowed_token_ids", options.allowed_token_ids()));
  }
  return absl::OkStatus();
}

}  // namespace taopd
