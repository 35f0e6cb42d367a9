#include "common/model/decoder.h"

#include "common/base/check.h"

namespace taopd {

PackedBatch PackedBatch::FromSequences(const std::vector<std::vector<int32_t>>& sequences,
                                       at::Device device) {
  PackedBatch batch;
  batch.cu_seqlens.reserve(sequences.size() + 1);
  batch.cu_seqlens.push_back(0);
  for (const auto& sequence : sequences) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<int64_t>(sequence.size()));
  }
  at::Tensor ids_T = at::empty({batch.cu_seqlens.back()}, at::kLong);
  int64_t* next = ids_T.data_ptr<int64_t>();
  for (const auto& sequence : sequences) next = std::copy(sequence.begin(), sequence.end(), next);
  batch.token_ids_T = ids_T.to(device);
  return batch;
}

ScoringOutput Decoder::ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                                 const at::Tensor& candidate_ids_NM,
                                 const ScoringOptions& options) {
  return ScoreRowsOfHead(hidden_NH, lm_head(), sampled_ids_N, candidate_ids_NM, options);
}

absl::StatusOr<at::Device> ParseDevice(const std::string& text) {
  const bool has_cuda = at::hasCUDA();
  if (text == "cpu") return at::Device(at::kCPU);
  if (text == "auto") return has_cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  int64_t index = 0;
  if (text != "cuda") {
    const std::string prefix = "cuda:";
    const std::string digits = text.starts_with(prefix) ? text.substr(prefix.size()) : "";
    if (digits.empty() || digits.size() > 3 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      return InvalidArgument("device \"", text, "\" is none of auto, cpu, cuda, cuda:<number>");
    }
    index = std::stoll(digits);
  }
  const int64_t num_devices = has_cuda ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (index >= num_devices) {
    return FailedPrecondition("device \"", text, "\" is not there: this program sees ", num_devices,
                              " CUDA devices");
  }
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

}  // namespace taopd
