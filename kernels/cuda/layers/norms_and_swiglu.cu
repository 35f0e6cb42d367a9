#include "taopd/layers/norms_and_swiglu.h"

#include <cmath>

#include "kernels/cuda/block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rotate.h"
#include "taopd/layers/layer_math.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kRowThreads = 256;      // threads for one row of a hidden state
constexpr int kRowsAtOnce = 4;        // rows of one reduction in RmsNormBackward
constexpr int kHeadWarps = 8;         // warps of a block, which share its heads
constexpr int kSharedHeadSize = 512;  // the largest head whose sums are in shared memory
constexpr int kFlatThreads = 256;
constexpr int kFlatElements = 4;  // elements of a thread

// Uses one block per row.
template <typename Element>
__global__ void RmsNormForwardKernel(RmsNormForward p) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * p.size;
  const Element* x = static_cast<const Element*>(p.x_NH) + first;
  const auto* weight = static_cast<const Element*>(p.weight_H);
  Element* normed = static_cast<Element*>(p.normed_NH) + first;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.size; i += kRowThreads) {
    float value = Load(x + i);
    if (p.added_NH != nullptr) {
      value += Load(static_cast<const Element*>(p.added_NH) + first + i);
      Element* sum = static_cast<Element*>(p.sum_NH) + first + i;
      Store(value, sum);
      value = Load(sum);
    }
    squares += value * value;
  }
  const float inverse_rms = InverseRms(Sum<kRowThreads>(squares), p.size, p.eps);
  // Each thread reads only what it wrote itself.
  if (p.added_NH != nullptr) x = static_cast<const Element*>(p.sum_NH) + first;
  for (int64_t i = threadIdx.x; i < p.size; i += kRowThreads) {
    Store(Round<Element>(Load(x + i) * inverse_rms) * Load(weight + i), normed + i);
  }
  if (p.inverse_rms_N != nullptr && threadIdx.x == 0) p.inverse_rms_N[blockIdx.x] = inverse_rms;
}

// The sums of the rows that a block computes at a time.
struct RowSums {
  float x[kRowsAtOnce];

  __device__ friend RowSums operator+(RowSums a, const RowSums& b) {
    for (int r = 0; r < kRowsAtOnce; ++r) a.x[r] += b.x[r];
    return a;
  }
};

// Uses one block for the rows of one partial sum; each thread owns its columns of the partial.
// Several rows share a reduction, whose barriers would take longer than the reads of a row.
template <typename Element>
__global__ void RmsNormBackwardKernel(RmsNormBackward p) {
  __shared__ RowSums scratch[kRowThreads];
  const auto* weight = static_cast<const Element*>(p.weight_H);
  float* partial = p.partials_PH + blockIdx.x * p.size;
  for (int64_t i = threadIdx.x; i < p.size; i += kRowThreads) partial[i] = 0;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRowsPerPartial;
  const int64_t end = begin + kRowsPerPartial < p.num_rows ? begin + kRowsPerPartial : p.num_rows;
  for (int64_t first = begin; first < end; first += kRowsAtOnce) {
    const Element* x = static_cast<const Element*>(p.x_NH) + first * p.size;
    const Element* d_normed = static_cast<const Element*>(p.d_normed_NH) + first * p.size;
    const int64_t rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;
    RowSums dots = {};
    for (int64_t i = threadIdx.x; i < p.size; i += kRowThreads) {
      const float w = Load(weight + i);
      float total = partial[i];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (r >= rows) break;
        const int64_t place = r * p.size + i;
        const float product =
            Load(d_normed + place) * (Load(x + place) * p.inverse_rms_N[first + r]);
        total += product;
        dots.x[r] += product * w;
      }
      partial[i] = total;
    }
    dots = BlockReduce<kRowThreads>(dots, scratch, SumOf());
    for (int64_t i = threadIdx.x; i < p.size; i += kRowThreads) {
      const float w = Load(weight + i);
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        if (r >= rows) break;
        const int64_t place = r * p.size + i;
        const float inverse_rms = p.inverse_rms_N[first + r];
        float result;
        RmsNormGradient(Load(d_normed + place), w, Load(x + place) * inverse_rms,
                        dots.x[r] / static_cast<float>(p.size), inverse_rms, &result);
        if (p.d_sum_NH != nullptr) {
          result += Load(static_cast<const Element*>(p.d_sum_NH) + first * p.size + place);
        }
        Store(result, static_cast<Element*>(p.d_x_NH) + first * p.size + place);
      }
    }
  }
}

// d_weight = the sum of the partials, in order. Uses one thread per column.
template <typename Element>
__global__ void SumPartialsKernel(const float* partials, int64_t num_partials, int64_t size,
                                  Element* d_weight) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (i >= size) return;
  float total = 0;
  for (int64_t p = 0; p < num_partials; ++p) total += partials[p * size + i];
  Store(total, d_weight + i);
}

// Uses one warp per head.
template <typename Element>
__global__ void HeadsForwardKernel(HeadsForward p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / kWarpSize;
  const int64_t D = p.head_size, token = row / p.num_heads;
  if (token >= p.num_tokens) return;
  NormRotateHead(static_cast<const Element*>(p.x_TAD) + row * D,
                 static_cast<const Element*>(p.weight_D),
                 static_cast<const Element*>(p.cos_TD) + token * D,
                 static_cast<const Element*>(p.sin_TD) + token * D, D, p.eps,
                 static_cast<Element*>(p.out_TAD) + row * D,
                 p.inverse_rms_TA != nullptr ? p.inverse_rms_TA + row : nullptr);
}

// Uses one block for the tokens of one partial sum. Its warps take the heads in turn and need no
// barrier until all are done: each lane owns its columns, in both halves, and each warp has sums of
// its own, which are added in the order of the warps. A single warp adds to the partial itself.
template <typename Element, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize) HeadsBackwardKernel(HeadsBackward p) {
  __shared__ float sums[kWarps][kWarps > 1 ? kSharedHeadSize : 1];
  const int64_t D = p.head_size, half = D / 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const auto* weight = static_cast<const Element*>(p.weight_D);
  float* const partial = weight != nullptr ? p.partials_PD + blockIdx.x * D : nullptr;
  float* const own = kWarps > 1 ? sums[warp] : partial;
  for (int64_t i = lane; weight != nullptr && i < half; i += kWarpSize) own[i] = own[half + i] = 0;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRowsPerPartial;
  const int64_t end =
      begin + kRowsPerPartial < p.num_tokens ? begin + kRowsPerPartial : p.num_tokens;
  for (int64_t row = begin * p.num_heads + warp; row < end * p.num_heads; row += kWarps) {
    const int64_t token = row / p.num_heads, head = row % p.num_heads;
    const Element* cos = static_cast<const Element*>(p.cos_TD) + token * D;
    const Element* sin = static_cast<const Element*>(p.sin_TD) + token * D;
    const Element* d_out = static_cast<const Element*>(p.d_out_TAD) + token * p.d_out_token_stride +
                           head * p.d_out_head_stride;
    Element* d_x = static_cast<Element*>(p.d_x_TAD) + row * D;
    const auto unrotate = [&](int64_t i, float* first, float* second) {
      UnrotatePair(Load(d_out + i), Load(d_out + half + i), Load(cos + i), Load(cos + half + i),
                   Load(sin + i), Load(sin + half + i), first, second);
    };
    if (weight == nullptr) {
      for (int64_t i = lane; i < half; i += kWarpSize) {
        float first, second;
        unrotate(i, &first, &second);
        Store(first, d_x + i);
        Store(second, d_x + half + i);
      }
      continue;
    }
    const Element* x = static_cast<const Element*>(p.x_TAD) + row * D;
    const float inverse_rms = p.inverse_rms_TA[row];
    float dot = 0;
    const auto add = [&](float d, int64_t i) {
      const float product = d * (Load(x + i) * inverse_rms);
      own[i] += product;
      dot += product * Load(weight + i);
    };
    for (int64_t i = lane; i < half; i += kWarpSize) {
      float first, second;
      unrotate(i, &first, &second);
      add(first, i);
      add(second, half + i);
    }
    const float mean = WarpSum(dot) / static_cast<float>(D);
    const auto write = [&](float d, int64_t i) {
      float result;
      RmsNormGradient(d, Load(weight + i), Load(x + i) * inverse_rms, mean, inverse_rms, &result);
      Store(result, d_x + i);
    };
    for (int64_t i = lane; i < half; i += kWarpSize) {
      float first, second;
      unrotate(i, &first, &second);
      write(first, i);
      write(second, half + i);
    }
  }
  if (kWarps == 1 || weight == nullptr) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < D; i += kWarps * kWarpSize) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][i];
    partial[i] = total;
  }
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// The elements of a thread of the SwiGLU kernels. All are loaded before one is stored, so that many
// reads are in flight. The threads of a warp read adjacent elements.
struct FlatElements {
  int64_t first, size;

  __device__ explicit FlatElements(int64_t size_)
      : first(static_cast<int64_t>(blockIdx.x) * kFlatThreads * kFlatElements + threadIdx.x),
        size(size_) {}
  static int64_t NumBlocks(int64_t size) { return CeilDiv(size, kFlatThreads * kFlatElements); }

  // Calls function(e, i) for element e of the thread, which is element i of the arrays.
  template <typename Function>
  __device__ void ForEach(const Function& function) const {
#pragma unroll
    for (int e = 0; e < kFlatElements; ++e) {
      const int64_t i = first + e * kFlatThreads;
      if (i < size) function(e, i);
    }
  }
  template <typename Element>
  __device__ void LoadAll(const void* from, float* values) const {
    ForEach([&](int e, int64_t i) { values[e] = Load(static_cast<const Element*>(from) + i); });
  }
};

template <typename Element>
__global__ void SwiGluForwardKernel(SwiGluForward p) {
  const FlatElements elements(p.size);
  float gate[kFlatElements], up[kFlatElements];
  elements.LoadAll<Element>(p.gate, gate);
  elements.LoadAll<Element>(p.up, up);
  elements.ForEach([&](int e, int64_t i) {
    Store(Round<Element>(gate[e] * Sigmoid(gate[e])) * up[e], static_cast<Element*>(p.y) + i);
  });
}

template <typename Element>
__global__ void SwiGluBackwardKernel(SwiGluBackward p) {
  const FlatElements elements(p.size);
  float gate[kFlatElements], up[kFlatElements], d_y[kFlatElements];
  elements.LoadAll<Element>(p.gate, gate);
  elements.LoadAll<Element>(p.up, up);
  elements.LoadAll<Element>(p.d_y, d_y);
  elements.ForEach([&](int e, int64_t i) {
    float d_gate, d_up;
    SwiGluGradient(gate[e], up[e], Sigmoid(gate[e]), d_y[e], &d_gate, &d_up);
    Store(d_gate, static_cast<Element*>(p.d_gate) + i);
    Store(d_up, static_cast<Element*>(p.d_up) + i);
  });
}

template <typename Element>
std::string SumPartials(const float* partials, int64_t num_partials, int64_t size, void* d_weight,
                        const DeviceContext& context) {
  return Launch("SumPartials", SumPartialsKernel<Element>, CeilDiv(size, kFlatThreads),
                kFlatThreads, context.stream, partials, num_partials, size,
                static_cast<Element*>(d_weight));
}

}  // namespace
}  // namespace cuda

using cuda::Launch;

std::string RmsNormForwardCuda(const RmsNormForward& p, const DeviceContext& context) {
  const auto kernel = p.dtype == DataType::kFloat32 ? cuda::RmsNormForwardKernel<float>
                                                    : cuda::RmsNormForwardKernel<__nv_bfloat16>;
  return Launch("RmsNormForward", kernel, p.num_rows, cuda::kRowThreads, context.stream, p);
}

std::string RmsNormBackwardCuda(const RmsNormBackward& p, const DeviceContext& context) {
  const bool wide = p.dtype == DataType::kFloat32;
  const auto kernel =
      wide ? cuda::RmsNormBackwardKernel<float> : cuda::RmsNormBackwardKernel<__nv_bfloat16>;
  const int64_t num_partials = NumPartials(p.num_rows);
  std::string error =
      Launch("RmsNormBackward", kernel, num_partials, cuda::kRowThreads, context.stream, p);
  if (!error.empty()) return error;
  const auto sum = wide ? cuda::SumPartials<float> : cuda::SumPartials<__nv_bfloat16>;
  return sum(p.partials_PH, num_partials, p.size, p.d_weight_H, context);
}

std::string HeadsForwardCuda(const HeadsForward& p, const DeviceContext& context) {
  const auto kernel = p.dtype == DataType::kFloat32 ? cuda::HeadsForwardKernel<float>
                                                    : cuda::HeadsForwardKernel<__nv_bfloat16>;
  return Launch("HeadsForward", kernel, CeilDiv(p.num_tokens * p.num_heads, cuda::kHeadWarps),
                cuda::kHeadWarps * cuda::kWarpSize, context.stream, p);
}

std::string HeadsBackwardCuda(const HeadsBackward& p, const DeviceContext& context) {
  const bool wide = p.dtype == DataType::kFloat32;
  const int64_t num_partials = NumPartials(p.num_tokens);
  const auto launch = [&](auto kernel, int num_warps) {
    return Launch("HeadsBackward", kernel, num_partials, num_warps * cuda::kWarpSize,
                  context.stream, p);
  };
  const auto run = [&](auto element) {
    using Element = decltype(element);
    return p.head_size <= cuda::kSharedHeadSize
               ? launch(cuda::HeadsBackwardKernel<Element, cuda::kHeadWarps>, cuda::kHeadWarps)
               : launch(cuda::HeadsBackwardKernel<Element, 1>, 1);
  };
  std::string error = wide ? run(float()) : run(__nv_bfloat16());
  if (!error.empty() || p.weight_D == nullptr) return error;
  const auto sum = wide ? cuda::SumPartials<float> : cuda::SumPartials<__nv_bfloat16>;
  return sum(p.partials_PD, num_partials, p.head_size, p.d_weight_D, context);
}

std::string SwiGluForwardCuda(const SwiGluForward& p, const DeviceContext& context) {
  const auto kernel = p.dtype == DataType::kFloat32 ? cuda::SwiGluForwardKernel<float>
                                                    : cuda::SwiGluForwardKernel<__nv_bfloat16>;
  return Launch("SwiGluForward", kernel, cuda::FlatElements::NumBlocks(p.size), cuda::kFlatThreads,
                context.stream, p);
}

std::string SwiGluBackwardCuda(const SwiGluBackward& p, const DeviceContext& context) {
  const auto kernel = p.dtype == DataType::kFloat32 ? cuda::SwiGluBackwardKernel<float>
                                                    : cuda::SwiGluBackwardKernel<__nv_bfloat16>;
  return Launch("SwiGluBackward", kernel, cuda::FlatElements::NumBlocks(p.size), cuda::kFlatThreads,
                context.stream, p);
}

}  // namespace taopd
