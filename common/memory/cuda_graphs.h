// CUDA graphs of decode steps: which batch sizes are captured, what a batch is padded to, and what
// the graphs take of the memory. A decode step computes one row for each of its sequences. The plan
// and the engine that it is made for both ask here. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda_graph_options.h"
#include "common/memory/model_memory.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The driver's memory for one graph that is ready to run. An allowance, not a measurement.
inline constexpr int64_t kCudaGraphBytes = int64_t{8} << 20;

// Of max_capture_size, for an engine of these limits.
int64_t LargestCaptureSize(const CudaGraphOptions& options, int64_t max_num_seqs,
                           int64_t max_num_batched_tokens);

// The sizes that are captured, in ascending order: 1, 2, 4, the multiples of 8 up to 256, those of
// 16 beyond, as far as they are below `largest`, and `largest`. REQUIRES: largest > 0.
std::vector<int64_t> CaptureSizes(int64_t largest);

// Rows that are added to a batch at most: the distance of two sizes is not more than one beyond.
inline constexpr int64_t kMaxPaddingRows = 15;
// The size that a batch of num_rows is padded to: the least that holds it. 0 if none does.
int64_t PaddedSize(const std::vector<int64_t>& sizes, int64_t num_rows);

// Checks the numbers alone. Returns INVALID_ARGUMENT naming the option.
absl::Status CheckCaptureLimits(const CudaGraphOptions& options, int64_t max_num_seqs);
// Returns INVALID_ARGUMENT if graphs are asked for where there can be none: the device is a CPU, the
// engine only scores, or the model does not compute a decode step on the device alone.
absl::Status CheckCudaGraphs(const CudaGraphOptions& options, const ModelConfig& config,
                             WeightDtype dtype, bool on_cpu, bool scores_only);

// The memory of the graphs on the device: those of the driver, the activations of the largest size,
// which the others share, the partial results of its attention, the steps' inputs and outputs, and
// the block of the pool that padding rows write to.
int64_t CudaGraphBytes(const ModelConfig& config, WeightDtype dtype,
                       const std::vector<int64_t>& sizes, int64_t max_seq_len);

}  // namespace taopd
