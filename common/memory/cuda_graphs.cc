#include "common/memory/cuda_graphs.h"

#include <algorithm>

#include "common/model/config/dtype.h"
#include "taopd/base/round_up.h"

namespace taopd {

int64_t LargestCaptureSize(const CudaGraphOptions& options, int64_t max_num_seqs,
                           int64_t max_num_batched_tokens) {
  const int64_t asked =
      options.max_capture_size > 0 ? options.max_capture_size : kDefaultCaptureSize;
  return std::min({asked, max_num_seqs, max_num_batched_tokens});
}

std::vector<int64_t> CaptureSizes(int64_t largest) {
  std::vector<int64_t> sizes;
  int64_t size = 1;
  while (size < largest) {
    sizes.push_back(size);
    size += size < 8 ? size : size < 256 ? 8 : 16;
  }
  sizes.push_back(largest);
  return sizes;
}

int64_t PaddedSize(const std::vector<int64_t>& sizes, int64_t num_rows) {
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), num_rows);
  return size != sizes.end() ? *size : 0;
}

absl::Status CheckCaptureLimits(const CudaGraphOptions& options, int64_t max_num_seqs) {
  const int64_t size = options.max_capture_size;
  if (size < 0 || size > kMaxCaptureSize) {
    return InvalidArgument("max_cudagraph_capture_size ", size, " must be between 0 and ",
                           kMaxCaptureSize);
  }
  if (size > max_num_seqs) {
    return InvalidArgument("max_cudagraph_capture_size ", size, " exceeds max_num_seqs ",
                           max_num_seqs, ": no step has as many sequences");
  }
  if (options.max_seq_len < 1) {
    return InvalidArgument("max_seq_len_to_capture ", options.max_seq_len, " must be at least 1");
  }
  return absl::OkStatus();
}

namespace {

// Returns why decode steps cannot be captured, or OK.
absl::Status CheckConditions(const ModelConfig& config, const CaptureConditions& conditions) {
  if (conditions.on_cpu) {
    return InvalidArgument("CUDA graphs need a CUDA device, but the model is on a CPU");
  }
  if (conditions.scores_only) {
    return InvalidArgument(
        "CUDA graphs need a KV cache, which has 0 bytes: an engine that only scores has no decode "
        "steps");
  }
  TAOPD_RETURN_IF_ERROR(CheckCanCapture(conditions.kernels, conditions.tensor_parallel_size));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.IsSparse(layer)) continue;
    return InvalidArgument("CUDA graphs do not work with ", config.architecture,
                           ": decode steps of mixtures of experts are not captured");
  }
  const DataType dtype = conditions.dtype;
  if (dtype == DataType::kFloat16 || config.head_dim % 2 != 0 || config.head_dim > kMaxHeadSize) {
    return InvalidArgument("CUDA graphs need float32 or bfloat16 and an even head_dim of at most ",
                           kMaxHeadSize, "; this model has ", ConfigDtype(dtype), " and ",
                           config.head_dim);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> UsesCudaGraphs(const CudaGraphOptions& options, const ModelConfig& config,
                                    const CaptureConditions& conditions) {
  if (options.use == CudaGraphUse::kNever) return false;
  const absl::Status possible = CheckConditions(config, conditions);
  if (options.use == CudaGraphUse::kAlways || options.max_capture_size > 0) {
    TAOPD_RETURN_IF_ERROR(possible);
  }
  return possible.ok();
}

int64_t CudaGraphBytes(const ModelConfig& config, DataType dtype, const std::vector<int64_t>& sizes,
                       int64_t max_seq_len) {
  const int64_t largest = sizes.back();
  int64_t num_rows = 0;  // rows of all sizes, each of which has its own inputs
  for (const int64_t size : sizes) num_rows += size;
  // The inputs of a row: the id and the position in int64; position, row of the block tables, tile
  // of four numbers and block table in int32.
  const int64_t input_bytes = 2 * 8 + (6 + KvBlocksFor(max_seq_len)) * 4;
  const int64_t num_partitions = CeilDiv(max_seq_len, kPartitionTokens);
  const int64_t partial_bytes =
      config.num_attention_heads * num_partitions * (config.head_dim + 2) * 4;
  return static_cast<int64_t>(sizes.size()) * kCudaGraphBytes +
         ActivationBytes(config, largest, dtype, /*on_cpu=*/false) + largest * partial_bytes +
         num_rows * input_bytes + largest * config.hidden_size * SizeOf(dtype) +
         KvBlockBytes(config, dtype, /*on_cpu=*/false);
}

}  // namespace taopd
