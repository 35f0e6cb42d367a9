#include "taopd/sampling/sample_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>

#include "kernels/cuda/block.h"
#include "kernels/cuda/launch.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kSampleBlock = 1024;  // numbers whose lanes are summed in float32
constexpr int kSampleLanes = 16;
constexpr int kSampleThreads = 512;
constexpr int kBlocksAtOnce = kSampleThreads / kSampleLanes;

__host__ __device__ inline int64_t NumWeightBlocks(int64_t vocab_size) {
  return CeilDiv(vocab_size, kSampleBlock);
}

// The weights of a row and their sums by block have the bits of kernels/cpu/math/weight_row.h: the
// same operations in the same order, none of them fused.

// 2^y for y <= 0, with the polynomial of the CPU's weights.
__device__ inline float Exp2OfNonPositive(float y) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  y = y > -127.0f ? y : -127.0f;
  const float shifted = __fadd_rn(y, kRound);
  const float f = __fsub_rn(y, __fsub_rn(shifted, kRound));
  float sum = __fadd_rn(__fmul_rn(f, 0.000154531634f), 0.00133908633f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.00961808302f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.0555035695f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.240226507f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.693147182f);
  sum = __fadd_rn(__fmul_rn(sum, f), 1.0f);
  // The low bits of `shifted` are the exponent.
  uint32_t bits = 0;
  memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + (127u << 23);
  float power = 0;
  memcpy(&power, &bits, sizeof(power));
  return __fmul_rn(sum, power);
}

// exp((z - shift) / temperature) is Weight(z, shift, ScaleToLog2(temperature)).
__device__ inline float ScaleToLog2(float temperature) {
  const auto scale = static_cast<float>(1.0 / static_cast<double>(temperature));
  return __fmul_rn(scale, 1.44269504088896341f);
}
__device__ inline float Weight(float z, float shift, float scale_to_log2) {
  return Exp2OfNonPositive(__fmul_rn(__fsub_rn(z, shift), scale_to_log2));
}

// Writes the sum of the weights of each block of the row. Every thread of the thread block calls
// it. `lanes` has kSampleThreads elements of shared memory, which may be reused as soon as the call
// returns.
__device__ inline void SumWeightBlocks(const float* logits, int64_t vocab_size, float shift,
                                       float scale_to_log2, float* lanes, double* block_sums) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kSampleLanes;
  const int64_t num_blocks = NumWeightBlocks(vocab_size);
  for (int64_t first = 0; first < num_blocks; first += kBlocksAtOnce) {
    const int64_t block = first + thread / kSampleLanes;
    const int64_t begin = block * kSampleBlock;
    const int64_t end = begin + kSampleBlock < vocab_size ? begin + kSampleBlock : vocab_size;
    float sum = 0;
    for (int64_t i = begin + lane; i < end; i += kSampleLanes) {
      sum = __fadd_rn(sum, Weight(logits[i], shift, scale_to_log2));
    }
    lanes[thread] = sum;
    __syncthreads();
    if (lane == 0 && block < num_blocks) {
      double total = 0;
      for (int i = 0; i < kSampleLanes; ++i) total += static_cast<double>(lanes[thread + i]);
      block_sums[block] = total;
    }
    __syncthreads();
  }
}

struct SampleArguments {
  SampleRows p;
  // [rows, num_blocks] each.
  double* block_sums = nullptr;      // sums of the weights under the temperature
  double* raw_block_sums = nullptr;  // under temperature 1, if the temperature is not 1
  int64_t num_blocks = 0;
};

// Shared memory of a block of threads.
struct SampleShared {
  float scratch[kSampleThreads];
  float weights[kSampleBlock];  // weights of the block that contains the draw
  double total, raw_total;
  double before, target;  // cumulative sums: up to that block, and the one to pass
  int64_t block;
};

struct MinOf {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return b < a ? b : a; }
};

// Returns the largest logit and sets *valid if there is neither a NaN nor +inf; the same in every
// thread.
__device__ inline float LargestLogit(const float* logits, int64_t vocab_size, bool* valid,
                                     SampleShared* shared) {
  float high = NegativeInfinity<float>();
  bool wrong = false;
  for (int64_t i = threadIdx.x; i < vocab_size; i += kSampleThreads) {
    const float z = logits[i];
    wrong = wrong || !(z < -NegativeInfinity<float>());
    high = MaxOf()(high, z);
  }
  *valid = !__syncthreads_or(wrong);
  return BlockReduce<kSampleThreads>(high, shared->scratch, MaxOf());
}

__device__ inline int32_t LowestIdOf(float logit, const float* logits, int64_t vocab_size,
                                     SampleShared* shared) {
  int32_t lowest = std::numeric_limits<int32_t>::max();
  for (int64_t i = threadIdx.x; i < vocab_size; i += kSampleThreads) {
    if (logits[i] == logit) lowest = MinOf()(lowest, static_cast<int32_t>(i));
  }
  return BlockReduce<kSampleThreads>(lowest, reinterpret_cast<int32_t*>(shared->scratch), MinOf());
}

// Finds the block of weights in which the cumulative sum passes the fraction `uniform` of the
// total. One thread calls it.
__device__ inline void FindBlock(const double* block_sums, int64_t num_blocks, double uniform,
                                 SampleShared* shared) {
  shared->target = uniform * shared->total;
  shared->block = 0;
  shared->before = 0;
  double cumulative = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    if (block_sums[b] == 0) continue;
    // The last block with a weight, in case rounding lifts the target to the total.
    shared->block = b;
    shared->before = cumulative;
    cumulative += block_sums[b];
    if (cumulative > shared->target) break;
  }
}

// Returns the token at which the cumulative sum passes the target. Every thread calls it; thread 0
// gets the result.
__device__ inline int32_t DrawInBlock(const float* logits, int64_t vocab_size, float shift,
                                      float scale_to_log2, SampleShared* shared) {
  const int64_t begin = shared->block * kSampleBlock;
  const int64_t num =
      vocab_size - begin < kSampleBlock ? vocab_size - begin : int64_t{kSampleBlock};
  for (int64_t i = threadIdx.x; i < num; i += kSampleThreads) {
    shared->weights[i] = Weight(logits[begin + i], shift, scale_to_log2);
  }
  __syncthreads();
  int64_t chosen = begin;
  if (threadIdx.x == 0) {
    double cumulative = shared->before;
    for (int64_t i = 0; i < num; ++i) {
      if (shared->weights[i] == 0) continue;
      cumulative += static_cast<double>(shared->weights[i]);
      chosen = begin + i;
      if (cumulative > shared->target) break;
    }
  }
  return static_cast<int32_t>(chosen);
}

__device__ inline double SumOfBlocks(const double* block_sums, int64_t num_blocks) {
  double total = 0;
  for (int64_t b = 0; b < num_blocks; ++b) total += block_sums[b];
  return total;
}

__device__ inline void Finish(const SampleRows& p, int64_t row, int32_t id, float log_prob,
                              float raw_log_prob) {
  p.ids_S[row] = id;
  p.invalid_S[row] = id < 0;
  if (p.log_probs_S != nullptr) p.log_probs_S[row] = log_prob;
  if (p.raw_log_probs_S != nullptr) p.raw_log_probs_S[row] = raw_log_prob;
}

// Uses one block per row.
__global__ void __launch_bounds__(kSampleThreads) SampleRowsKernel(SampleArguments args) {
  __shared__ SampleShared shared;
  const SampleRows& p = args.p;
  const int64_t row = blockIdx.x, V = p.vocab_size;
  const float* logits = p.logits_SV + row * p.logits_stride;
  bool valid;
  const float high = LargestLogit(logits, V, &valid, &shared);
  if (!valid || high == NegativeInfinity<float>()) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    if (threadIdx.x == 0) Finish(p, row, -1, kNan, kNan);
    return;
  }
  const bool greedy = p.temperatures_S[row] == 0;
  const float temperature = greedy ? 1.0f : p.temperatures_S[row];
  const bool has_raw = p.raw_log_probs_S != nullptr && temperature != 1;
  double* sums = args.block_sums + row * args.num_blocks;
  double* raw_sums = args.raw_block_sums + row * args.num_blocks;
  const float scale = ScaleToLog2(temperature);
  SumWeightBlocks(logits, V, high, scale, shared.scratch, sums);
  if (has_raw) SumWeightBlocks(logits, V, high, ScaleToLog2(1), shared.scratch, raw_sums);
  if (threadIdx.x == 0) {
    shared.total = SumOfBlocks(sums, args.num_blocks);
    shared.raw_total = has_raw ? SumOfBlocks(raw_sums, args.num_blocks) : shared.total;
    if (!greedy) FindBlock(sums, args.num_blocks, p.uniforms_S[row], &shared);
  }
  __syncthreads();
  const int32_t id =
      greedy ? LowestIdOf(high, logits, V, &shared) : DrawInBlock(logits, V, high, scale, &shared);
  if (threadIdx.x != 0) return;
  const double difference = static_cast<double>(logits[id]) - static_cast<double>(high);
  Finish(p, row, id,
         static_cast<float>(difference / static_cast<double>(temperature) - log(shared.total)),
         static_cast<float>(difference - log(shared.raw_total)));
}

std::string ArgumentError(const SampleRows& p, const DeviceContext& context) {
  std::ostringstream problem;
  if (p.num_rows < 0) {
    problem << "num_rows is " << p.num_rows << ", must not be negative";
  } else if (p.vocab_size < 1 || p.vocab_size > std::numeric_limits<int32_t>::max()) {
    problem << "vocab_size is " << p.vocab_size << ", must be in [1, 2^31)";
  } else if (p.logits_stride < p.vocab_size) {
    problem << "logits_stride is " << p.logits_stride << ", must be at least vocab_size "
            << p.vocab_size;
  } else if (p.num_rows > 0 &&
             (p.logits_SV == nullptr || p.temperatures_S == nullptr || p.uniforms_S == nullptr ||
              p.ids_S == nullptr || p.invalid_S == nullptr)) {
    problem << "logits, temperatures, uniforms, ids and invalid are needed";
  } else if (const int64_t needed = SampleRowsWorkspaceBytes(p.num_rows, p.vocab_size);
             needed > 0 && (context.workspace == nullptr || context.workspace_bytes < needed)) {
    problem << "the workspace has " << context.workspace_bytes << " bytes, " << needed
            << " are needed";
  }
  return problem.str();
}

}  // namespace
}  // namespace cuda

int64_t SampleRowsWorkspaceBytes(int64_t num_rows, int64_t vocab_size) {
  return 2 * num_rows * cuda::NumWeightBlocks(vocab_size) * static_cast<int64_t>(sizeof(double));
}

std::string SampleRowsCuda(const SampleRows& problem, const DeviceContext& context) {
  if (std::string error = cuda::ArgumentError(problem, context); !error.empty()) return error;
  cuda::SampleArguments args;
  args.p = problem;
  args.num_blocks = cuda::NumWeightBlocks(problem.vocab_size);
  args.block_sums = static_cast<double*>(context.workspace);
  args.raw_block_sums = args.block_sums + problem.num_rows * args.num_blocks;
  return cuda::Launch("SampleRows", cuda::SampleRowsKernel, problem.num_rows, cuda::kSampleThreads,
                      context.stream, args);
}

}  // namespace taopd
