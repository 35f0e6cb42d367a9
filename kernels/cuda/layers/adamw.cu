#include "taopd/layers/adamw.h"

#include <cmath>

#include "kernels/cuda/block.h"
#include "kernels/cuda/launch.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// Returns the tensor to which block `block` belongs: the last whose first block is at or before it.
__device__ inline const AdamWTensor& TensorOf(const AdamWTensor* tensors, int32_t num_tensors,
                                              int64_t block) {
  int32_t low = 0, high = num_tensors;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (tensors[middle].first_block <= block ? low : high) = middle;
  }
  return tensors[low];
}

__device__ inline float GradientAt(const AdamWTensor& tensor, int64_t i) {
  return tensor.gradient_type == DataType::kFloat32
             ? Load(static_cast<const float*>(tensor.gradient) + i)
             : Load(static_cast<const __nv_bfloat16*>(tensor.gradient) + i);
}

__device__ inline int64_t EndOfBlock(const AdamWTensor& tensor, int64_t first) {
  return first + kAdamWBlock < tensor.size ? first + kAdamWBlock : tensor.size;
}

__device__ inline uint16_t StochasticBfloat16(float value, uint32_t random_16) {
  return static_cast<uint16_t>(
      RoundToBfloat16(static_cast<uint32_t>(__float_as_int(value)), random_16));
}

// Loads and stores both moments of an element.
struct Moments {
  float exp_avg, exp_avg_sq;

  __device__ static Moments Load(const AdamWTensor& tensor, int64_t i) {
    if (tensor.moments_type == DataType::kFloat32) {
      return {static_cast<const float*>(tensor.exp_avg)[i],
              static_cast<const float*>(tensor.exp_avg_sq)[i]};
    }
    return {cuda::Load(static_cast<const __nv_bfloat16*>(tensor.exp_avg) + i),
            cuda::Load(static_cast<const __nv_bfloat16*>(tensor.exp_avg_sq) + i)};
  }

  __device__ void Store(const AdamWTensor& tensor, uint64_t random_key, int64_t i) const {
    if (tensor.moments_type == DataType::kFloat32) {
      static_cast<float*>(tensor.exp_avg)[i] = exp_avg;
      static_cast<float*>(tensor.exp_avg_sq)[i] = exp_avg_sq;
      return;
    }
    const uint32_t random =
        AdamWRandomBits(random_key, static_cast<uint32_t>(tensor.first_element + i));
    static_cast<uint16_t*>(tensor.exp_avg)[i] = StochasticBfloat16(exp_avg, random & 0xffff);
    static_cast<uint16_t*>(tensor.exp_avg_sq)[i] = StochasticBfloat16(exp_avg_sq, random >> 16);
  }
};

__global__ void AdamWKernel(AdamWFactors<float> factors, double lr, int64_t step,
                            const AdamWTensor* tensors, int32_t num_tensors) {
  const int64_t block = blockIdx.x;
  const AdamWTensor& tensor = TensorOf(tensors, num_tensors, block);
  const auto keep = static_cast<float>(1 - lr * static_cast<double>(tensor.weight_decay));
  const uint64_t random_key = AdamWRandomKey(step, tensor.parameter);
  const uint64_t weight_key = AdamWWeightKey(step, tensor.parameter);
  const int64_t first = (block - tensor.first_block) * kAdamWBlock;
  const int64_t end = EndOfBlock(tensor, first);
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    float x = tensor.master != nullptr
                  ? tensor.master[i]
                  : Load(reinterpret_cast<const __nv_bfloat16*>(tensor.bfloat16) + i);
    Moments moments = Moments::Load(tensor, i);
    AdamWMoments(factors, GradientAt(tensor, i), &moments.exp_avg, &moments.exp_avg_sq);
    AdamWParameter(factors, keep, moments.exp_avg, std::sqrt(moments.exp_avg_sq), &x);
    moments.Store(tensor, random_key, i);
    if (tensor.master == nullptr) {
      const uint32_t random =
          AdamWRandomBits(weight_key, static_cast<uint32_t>(tensor.first_element + i));
      tensor.bfloat16[i] = StochasticBfloat16(x, random & 0xffff);
      continue;
    }
    tensor.master[i] = x;
    if (tensor.bfloat16 != nullptr) {
      Store(x, reinterpret_cast<__nv_bfloat16*>(tensor.bfloat16) + i);
    }
  }
}

__global__ void SumsOfSquaresKernel(const AdamWTensor* tensors, int32_t num_tensors,
                                    double* sums_B) {
  const int64_t block = blockIdx.x;
  const AdamWTensor& tensor = TensorOf(tensors, num_tensors, block);
  const int64_t first = (block - tensor.first_block) * kAdamWBlock;
  const int64_t end = EndOfBlock(tensor, first);
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const double gradient = GradientAt(tensor, i);
    sum += gradient * gradient;
  }
  __shared__ double scratch[kThreads];
  sum = BlockReduce<kThreads>(sum, scratch, SumOf());
  if (threadIdx.x == 0) sums_B[block] = sum;
}

}  // namespace
}  // namespace cuda

std::string AdamWCuda(const AdamWSettings& settings, const AdamWTensor* tensors_S,
                      int32_t num_tensors, int64_t num_blocks, const DeviceContext& context) {
  return cuda::Launch("AdamW", cuda::AdamWKernel, num_blocks, cuda::kThreads, context.stream,
                      MakeAdamWFactors<float>(settings), settings.lr, settings.step, tensors_S,
                      num_tensors);
}

std::string SumsOfSquaresCuda(const AdamWTensor* tensors_S, int32_t num_tensors, int64_t num_blocks,
                              double* sums_B, const DeviceContext& context) {
  return cuda::Launch("SumsOfSquares", cuda::SumsOfSquaresKernel, num_blocks, cuda::kThreads,
                      context.stream, tensors_S, num_tensors, sums_B);
}

}  // namespace taopd
