// CUDA graphs of decode steps: the batch sizes that are captured, the size to which a batch is
// padded, and the memory of the graphs. A decode step computes one row for each of its sequences.
// The plan and the engine for which it is made both use these functions. All are pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda_graph_options.h"
#include "common/memory/model_memory.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The driver's memory for one graph that is ready to run. This is an allowance, not a measurement.
inline constexpr int64_t kCudaGraphBytes = int64_t{8} << 20;

// Returns the effective max_capture_size for an engine with these limits.
int64_t LargestCaptureSize(const CudaGraphOptions& options, int64_t max_num_seqs,
                           int64_t max_num_batched_tokens);

// Returns the sizes that are captured, in ascending order: 1, 2, 4, the multiples of 8 up to 256
// and the multiples of 16 above, as far as they are below `largest`, and `largest`. REQUIRES:
// largest > 0.
std::vector<int64_t> CaptureSizes(int64_t largest);

// The largest number of rows that are added to a batch: consecutive sizes differ by at most 16.
inline constexpr int64_t kMaxPaddingRows = 15;
// Returns the size to which a batch of num_rows is padded: the smallest that holds it, or 0 if none
// does.
int64_t PaddedSize(const std::vector<int64_t>& sizes, int64_t num_rows);

// Checks only the numbers. Returns INVALID_ARGUMENT naming the option.
absl::Status CheckCaptureLimits(const CudaGraphOptions& options, int64_t max_num_seqs);
// The conditions, besides the model, under which an engine can capture its decode steps.
struct CaptureConditions {
  DataType dtype = DataType::kBFloat16;
  bool on_cpu = false;
  bool scores_only = false;
  KernelMode kernels = KernelMode::kAuto;
  int64_t tensor_parallel_size = 1;
};
// Returns whether decode steps are captured. Returns INVALID_ARGUMENT if the model or the
// conditions make that impossible, but it is requested by kAlways or by a max_capture_size.
absl::StatusOr<bool> UsesCudaGraphs(const CudaGraphOptions& options, const ModelConfig& config,
                                    const CaptureConditions& conditions);

// Returns the memory of the graphs on the device: the driver's, the activations of the largest
// size, which the others share, the partial results of its attention, the steps' inputs and
// outputs, and the block of the pool that padding rows write to.
int64_t CudaGraphBytes(const ModelConfig& config, DataType dtype, const std::vector<int64_t>& sizes,
                       int64_t max_seq_len);

}  // namespace taopd
