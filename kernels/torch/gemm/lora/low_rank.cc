#include "kernels/torch/gemm/lora/low_rank.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/torch/gemm/packed_product.h"
#include "kernels/torch/parallel_loop.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

// The rows that a thread merges at a time when a whole matrix is merged.
constexpr int64_t kMergedRows = cpu::kPanelOutputs;

template <typename Element>
void WidenRow(const Element* from, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] = static_cast<float>(from[i]);
}

void WidenRows(const at::Tensor& weight_NK, int64_t first, int64_t num, float* to) {
  const int64_t offset = first * weight_NK.size(1), size = num * weight_NK.size(1);
  if (weight_NK.scalar_type() == at::kBFloat16) {
    WidenRow(weight_NK.const_data_ptr<at::BFloat16>() + offset, size, to);
  } else if (weight_NK.scalar_type() == at::kHalf) {
    WidenRow(weight_NK.const_data_ptr<at::Half>() + offset, size, to);
  } else {
    const float* const from = weight_NK.const_data_ptr<float>() + offset;
    std::copy(from, from + size, to);
  }
}

}  // namespace

void CheckAdapter(const LowRankAdapter& adapter, const at::Tensor& weight_NK) {
  if (!adapter.defined()) return;
  const int64_t R = adapter.a_RK.size(0);
  for (const at::Tensor& factor : {adapter.a_RK, adapter.b_NR}) {
    TORCH_CHECK(factor.defined() && factor.scalar_type() == at::kFloat && factor.is_contiguous() &&
                    factor.device() == weight_NK.device(),
                "an adapter's matrices must be contiguous float32 tensors on ", weight_NK.device());
  }
  TORCH_CHECK(R > 0 && adapter.a_RK.sizes() == at::IntArrayRef({R, weight_NK.size(1)}) &&
                  adapter.b_NR.sizes() == at::IntArrayRef({weight_NK.size(0), R}),
              "an adapter has A ", adapter.a_RK.sizes(), " and B ", adapter.b_NR.sizes(),
              ", its weight is ", weight_NK.sizes());
}

MergedRows::MergedRows(const at::Tensor& weight_NK, const LowRankAdapter& adapter)
    : weight_NK_(weight_NK), a_RK_(adapter.a_RK) {
  const at::NoGradGuard no_grad;
  scaled_b_RN_ = adapter.b_NR.detach().mul(adapter.scale).t().contiguous();
}

void MergedRows::Compute(int64_t first, int64_t num, float* rows) const {
  const int64_t N = scaled_b_RN_.size(1), K = a_RK_.size(1), R = a_RK_.size(0);
  WidenRows(weight_NK_, first, num, rows);
  const float* const b = scaled_b_RN_.const_data_ptr<float>();
  const float* const a = a_RK_.const_data_ptr<float>();
  const cpu::PackedGemm& gemm = cpu::BestPackedGemm();
  for (int64_t n = 0; n < num; n += cpu::kPanelOutputs) {
    for (int64_t k = 0; k < K; k += cpu::kPanelOutputs) {
      gemm.add_transposed_floats(b + first + n, N, a + k, K, R,
                                 std::min(cpu::kPanelOutputs, num - n),
                                 std::min(cpu::kPanelOutputs, K - k), rows + n * K + k, K);
    }
  }
}

at::Tensor MergeAdapter(const at::Tensor& weight_NK, const LowRankAdapter& adapter) {
  const at::NoGradGuard no_grad;
  CheckAdapter(adapter, weight_NK);
  if (!weight_NK.is_cpu()) {
    return at::mm(adapter.b_NR, adapter.a_RK)
        .mul_(adapter.scale)
        .add_(weight_NK)
        .to(weight_NK.scalar_type());
  }
  const int64_t N = weight_NK.size(0), K = weight_NK.size(1);
  const at::Tensor merged_NK = at::empty({N, K}, weight_NK.options().requires_grad(false));
  const MergedRows rows(weight_NK.detach().contiguous(), adapter);
  const auto element_bytes = static_cast<int64_t>(merged_NK.element_size());
  ParallelLoop(CeilDiv(N, kMergedRows), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> merged(static_cast<size_t>(kMergedRows * K));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kMergedRows, num = std::min(kMergedRows, N - first);
      rows.Compute(first, num, merged.data());
      StoreRow(cpu::BestPackedGemm(), merged.data(), nullptr, num * K, merged_NK.scalar_type(),
               static_cast<char*>(merged_NK.mutable_data_ptr()) + first * K * element_bytes);
    }
  });
  return merged_NK;
}

}  // namespace taopd
