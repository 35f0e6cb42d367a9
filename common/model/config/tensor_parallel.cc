#include "common/model/config/tensor_parallel.h"

#include <algorithm>

namespace taopd {
namespace {

absl::Status CheckDivides(int64_t size, int64_t value, const char* name) {
  if (value % size == 0) return absl::OkStatus();
  return InvalidArgument("tensor_parallel_size ", size, " does not divide the model's ", name, " ",
                         value);
}

}  // namespace

absl::Status CheckTensorParallel(const ModelConfig& config, int64_t size) {
  if (size < 1) return InvalidArgument("tensor_parallel_size ", size, " must be at least 1");
  TAOPD_RETURN_IF_ERROR(CheckDivides(size, config.num_attention_heads, "num_attention_heads"));
  if (config.num_key_value_heads % size != 0 && size % config.num_key_value_heads != 0) {
    return InvalidArgument("tensor_parallel_size ", size,
                           " neither divides the model's num_key_value_heads ",
                           config.num_key_value_heads, " nor is a multiple of it");
  }
  bool has_dense_layer = false;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) has_dense_layer |= !config.IsSparse(i);
  if (has_dense_layer) {
    TAOPD_RETURN_IF_ERROR(CheckDivides(size, config.intermediate_size, "intermediate_size"));
  }
  if (config.moe.num_experts > 0) {
    TAOPD_RETURN_IF_ERROR(
        CheckDivides(size, config.moe.intermediate_size, "moe_intermediate_size"));
  }
  if (config.vocab_size < size) {
    return InvalidArgument("tensor_parallel_size ", size, " exceeds the model's vocab_size ",
                           config.vocab_size);
  }
  return absl::OkStatus();
}

ModelConfig SliceOf(const ModelConfig& config, const TensorParallel& parallel) {
  ModelConfig slice = config;
  slice.num_attention_heads /= parallel.size;
  slice.num_key_value_heads = std::max<int64_t>(1, slice.num_key_value_heads / parallel.size);
  slice.intermediate_size /= parallel.size;
  slice.moe.intermediate_size /= parallel.size;
  slice.vocab_size = parallel.NumIds(config.vocab_size);
  if (parallel.size > 1) slice.raw_json.clear();
  return slice;
}

}  // namespace taopd
