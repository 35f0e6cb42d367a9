// AdamW over all parameters of a model in one call, and the norm of their gradients. The arithmetic
// and its source are in taopd/layers/adamw_math.h.
//
// A model's elements stand one after the other, parameter by parameter, and are cut into blocks of
// kAdamWBlock elements that do not cross parameters. The norm sums blocks in float64 in their
// order, so it does not depend on the number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "taopd/base/device.h"
#include "taopd/layers/adamw_math.h"

namespace taopd {

inline constexpr int64_t kAdamWBlock = 1 << 15;

// One parameter with its state. Sizes are in elements; everything is contiguous.
struct AdamWTensor {
  int64_t size = 0;
  // The gradient's sum over the micro-batches, in the type it was accumulated in.
  DataType gradient_type = DataType::kFloat32;
  const void* gradient = nullptr;
  float* master = nullptr;  // float32: the parameter itself, or the copy of one in bfloat16
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  uint16_t* bfloat16 = nullptr;  // the parameter that the master copy is rounded to; may be null
  float weight_decay = 0;
  int64_t first_block = 0;  // set by NumberBlocks
};

// Fills in first_block; returns the number of blocks.
inline int64_t NumberBlocks(std::vector<AdamWTensor>* tensors) {
  int64_t num_blocks = 0;
  for (AdamWTensor& tensor : *tensors) {
    tensor.first_block = num_blocks;
    num_blocks += (tensor.size + kAdamWBlock - 1) / kAdamWBlock;
  }
  return num_blocks;
}

struct AdamWSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t step = 1;           // t >= 1, this update included
  double gradient_scale = 1;  // of clipping
};

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

// On CUDA, see taopd/base/device.h. tensors_S is device memory, numbered by NumberBlocks.
std::string AdamWCuda(const AdamWSettings& settings, const AdamWTensor* tensors_S,
                      int32_t num_tensors, int64_t num_blocks, const DeviceContext& context);
// sums_B: device memory, float64 [num_blocks], the sums of squares of the gradients' blocks.
std::string SumsOfSquaresCuda(const AdamWTensor* tensors_S, int32_t num_tensors, int64_t num_blocks,
                              double* sums_B, const DeviceContext& context);

}  // namespace taopd
