// AdamW over all parameters of a model in one call, and the norm of their gradients. The arithmetic
// and its source are in taopd/layers/adamw_math.h.
//
// Each parameter is cut into blocks of kAdamWBlock elements; its last block may be shorter. Blocks
// are numbered through all parameters. The norm sums the blocks in float64 in their order, so it
// does not depend on the number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "taopd/base/data_type.h"
#include "taopd/base/device.h"
#include "taopd/base/parallel_for.h"
#include "taopd/base/round_up.h"
#include "taopd/layers/adamw_math.h"

namespace taopd {

inline constexpr int64_t kAdamWBlock = 1 << 15;

// One parameter with its state: contiguous arrays of `size` elements that belong to the caller.
struct AdamWTensor {
  int64_t size = 0;
  // The gradient's sum over the micro-batches, in the type in which it was accumulated.
  DataType gradient_type = DataType::kFloat32;
  const void* gradient = nullptr;
  // The parameter itself if it is float32, otherwise its float32 copy. If null, the update goes to
  // `bfloat16` directly and is rounded stochastically.
  float* master = nullptr;
  void* exp_avg = nullptr;     // the first moment, of moments_type
  void* exp_avg_sq = nullptr;  // the second moment, of moments_type
  // The bfloat16 parameter, which receives `master` rounded; null if the parameter is float32.
  uint16_t* bfloat16 = nullptr;
  float weight_decay = 0;
  // The number of the parameter's first block. Set by NumberBlocks.
  int64_t first_block = 0;
  DataType moments_type = DataType::kFloat32;
  // Stochastic rounding, of bfloat16 moments and of a parameter without `master`, takes the random
  // bits of the elements from first_element on of the parameter whose number is `parameter`.
  int64_t parameter = 0;
  int64_t first_element = 0;
};

// Sets first_block of every tensor and returns the number of blocks.
inline int64_t NumberBlocks(std::vector<AdamWTensor>* tensors) {
  int64_t num_blocks = 0;
  for (AdamWTensor& tensor : *tensors) {
    tensor.first_block = num_blocks;
    num_blocks += CeilDiv(tensor.size, kAdamWBlock);
  }
  return num_blocks;
}

struct AdamWSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t step = 1;           // t >= 1; the first update is step 1
  double gradient_scale = 1;  // gradients are multiplied by this, for clipping
};

// Returns the values of an update that all elements share.
template <typename Scalar>
AdamWFactors<Scalar> MakeAdamWFactors(const AdamWSettings& settings) {
  const auto step = static_cast<double>(settings.step);
  AdamWFactors<Scalar> factors;
  factors.gradient_scale = static_cast<Scalar>(settings.gradient_scale);
  factors.one_minus_beta1 = static_cast<Scalar>(1 - settings.beta1);
  factors.beta2 = static_cast<Scalar>(settings.beta2);
  factors.one_minus_beta2 = static_cast<Scalar>(1 - settings.beta2);
  factors.step_size = static_cast<Scalar>(settings.lr / (1 - std::pow(settings.beta1, step)));
  factors.root_scale = static_cast<Scalar>(1 / std::sqrt(1 - std::pow(settings.beta2, step)));
  factors.eps = static_cast<Scalar>(settings.eps);
  return factors;
}

// The functions of the CPU return when the work is done; they get their threads from the
// ParallelFor. Any thread may call them; calls with different outputs may overlap. REQUIRES:
// NumberBlocks has set the tensors' first_block.
namespace cpu {
// Applies one update to all parameters.
void AdamW(const AdamWSettings& settings, const std::vector<AdamWTensor>& tensors,
           const ParallelFor& parallel_for);
// Returns the sum of the squares of all elements of the gradients; blocks are added in float64. It
// is NaN or infinite if an element is.
double SumOfSquares(const std::vector<AdamWTensor>& tensors, const ParallelFor& parallel_for);
}  // namespace cpu

// Enqueues one update on CUDA, under the contract of taopd/base/device.h. tensors_S [num_tensors]
// is device memory; NumberBlocks has set first_block and returned num_blocks. Needs no workspace.
std::string AdamWCuda(const AdamWSettings& settings, const AdamWTensor* tensors_S,
                      int32_t num_tensors, int64_t num_blocks, const DeviceContext& context);
// Writes the sum of squares of each block of the gradients to sums_B, device memory for num_blocks
// float64 numbers. Otherwise like AdamWCuda.
std::string SumsOfSquaresCuda(const AdamWTensor* tensors_S, int32_t num_tensors, int64_t num_blocks,
                              double* sums_B, const DeviceContext& context);

}  // namespace taopd
