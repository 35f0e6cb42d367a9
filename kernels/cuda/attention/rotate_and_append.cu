#include "kernels/cuda/attention/plain_pages.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rotate.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kHeadWarps = 8;  // warps of a block

std::string ArgumentError(const RotateAndAppend& p) {
  if (std::string error = PagesError(p.pages, p.num_heads); !error.empty()) return error;
  std::ostringstream problem;
  if (p.num_rows < 0 || p.max_blocks < 0) {
    problem << "num_rows is " << p.num_rows << " and max_blocks " << p.max_blocks
            << ", must not be negative";
  } else if (p.num_rows > 0 &&
             (p.positions_T == nullptr || p.sequences_T == nullptr ||
              p.block_tables_SM == nullptr || p.k_TKD == nullptr || p.v_TKD == nullptr)) {
    problem << "positions, sequences, block_tables, k and v are needed";
  } else if ((p.q_TND == nullptr) != (p.q_out_TND == nullptr)) {
    problem << "q and q_out are needed together";
  } else if ((p.cos_TD == nullptr) != (p.sin_TD == nullptr)) {
    problem << "cos and sin are needed together";
  }
  return problem.str();
}

// Uses one warp per head of a row: first the query heads, if they are requested, then the key
// heads and the value heads.
template <typename Element>
__global__ void RotateAndAppendKernel(RotateAndAppend p) {
  const int64_t D = p.pages.head_size, K = p.pages.num_kv_heads;
  const int64_t num_queries = p.q_TND != nullptr ? p.num_heads : 0;
  const int64_t heads = num_queries + 2 * K;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / kWarpSize;
  const int64_t row = index / heads, head = index % heads;
  if (row >= p.num_rows) return;
  const auto* cos = static_cast<const Element*>(p.cos_TD);
  const auto* sin = static_cast<const Element*>(p.sin_TD);
  if (cos != nullptr) {
    cos += row * D;
    sin += row * D;
  }
  if (head < num_queries) {
    NormRotateHead(static_cast<const Element*>(p.q_TND) + row * p.q_row_stride + head * D,
                   static_cast<const Element*>(p.q_norm_D), cos, sin, D, p.eps,
                   static_cast<Element*>(p.q_out_TND) + row * p.q_out_row_stride + head * D,
                   nullptr);
    return;
  }
  const int64_t kv_head = (head - num_queries) % K;
  const int32_t position = p.positions_T[row];
  const int64_t block =
      p.block_tables_SM[p.sequences_T[row] * p.max_blocks + position / kBlockTokens];
  const int64_t place = ((block * K + kv_head) * kBlockTokens + position % kBlockTokens) * D;
  if (head < num_queries + K) {
    NormRotateHead(static_cast<const Element*>(p.k_TKD) + row * p.k_row_stride + kv_head * D,
                   static_cast<const Element*>(p.k_norm_D), cos, sin, D, p.eps,
                   static_cast<Element*>(p.pages.keys_BKPD) + place, nullptr);
    return;
  }
  const Element* value = static_cast<const Element*>(p.v_TKD) + row * p.v_row_stride + kv_head * D;
  Element* stored = static_cast<Element*>(p.pages.values_BKPD) + place;
  for (int64_t i = threadIdx.x % kWarpSize; i < D; i += kWarpSize) stored[i] = value[i];
}

}  // namespace
}  // namespace cuda

std::string RotateAndAppendCuda(const RotateAndAppend& p, const DeviceContext& context) {
  if (std::string error = cuda::ArgumentError(p); !error.empty()) return error;
  const auto kernel = p.pages.dtype == DataType::kFloat32
                          ? cuda::RotateAndAppendKernel<float>
                          : cuda::RotateAndAppendKernel<__nv_bfloat16>;
  const int64_t heads = (p.q_TND != nullptr ? p.num_heads : 0) + 2 * p.pages.num_kv_heads;
  return cuda::Launch("RotateAndAppend", kernel, CeilDiv(p.num_rows * heads, cuda::kHeadWarps),
                      cuda::kHeadWarps * cuda::kWarpSize, context.stream, p);
}

}  // namespace taopd
