#include "kernels/torch/layers/fused_projections.h"

#include "kernels/cpu/layers/fused_projections.h"
#include "kernels/torch/aten_parallel_for.h"

namespace taopd {
namespace {

bool HasCpuLoops(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

DataType LoopType(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
}

const void* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace

RotatedHeads NormRotateFused(const at::Tensor& qkv_TC, int64_t num_heads, int64_t num_kv_heads,
                             const at::Tensor& q_norm_D, const at::Tensor& k_norm_D, double eps,
                             const at::Tensor& cos_T1D, const at::Tensor& sin_T1D) {
  const int64_t T = qkv_TC.size(0), D = cos_T1D.size(-1);
  TORCH_CHECK(qkv_TC.is_contiguous() && qkv_TC.size(1) == (num_heads + 2 * num_kv_heads) * D,
              "qkv has shape ", qkv_TC.sizes(), " for ", num_heads, " + 2 * ", num_kv_heads,
              " heads of ", D);
  if (!HasCpuLoops(qkv_TC)) {
    const auto heads = [&](int64_t first, int64_t num, const at::Tensor& norm_D) {
      return NormRotateHeads(qkv_TC.narrow(1, first * D, num * D).reshape({T, num, D}), norm_D,
                             eps, cos_T1D, sin_T1D);
    };
    return {heads(0, num_heads, q_norm_D), heads(num_heads, num_kv_heads, k_norm_D)};
  }
  RotatedHeads heads = {at::empty({T, num_heads, D}, qkv_TC.options()),
                        at::empty({T, num_kv_heads, D}, qkv_TC.options())};
  cpu::RotateFusedHeads problem;
  problem.dtype = LoopType(qkv_TC);
  problem.num_rows = T;
  problem.num_heads = num_heads;
  problem.num_kv_heads = num_kv_heads;
  problem.head_size = D;
  problem.eps = static_cast<float>(eps);
  problem.qkv_TC = qkv_TC.const_data_ptr();
  problem.q_norm_D = DataOrNull(q_norm_D);
  problem.k_norm_D = DataOrNull(k_norm_D);
  problem.cos_TD = cos_T1D.const_data_ptr();
  problem.sin_TD = sin_T1D.const_data_ptr();
  problem.queries_TND = heads.queries_TND.mutable_data_ptr();
  problem.keys_TKD = heads.keys_TKD.mutable_data_ptr();
  cpu::Run(problem, AtenParallelFor());
  return heads;
}

at::Tensor SwiGluFused(const at::Tensor& gate_up_T2I) {
  const int64_t T = gate_up_T2I.size(0), I = gate_up_T2I.size(1) / 2;
  if (!HasCpuLoops(gate_up_T2I)) {
    return SwiGlu(gate_up_T2I.narrow(1, 0, I).contiguous(),
                  gate_up_T2I.narrow(1, I, I).contiguous());
  }
  TORCH_CHECK(gate_up_T2I.is_contiguous() && gate_up_T2I.size(1) % 2 == 0, "gate | up has shape ",
              gate_up_T2I.sizes());
  at::Tensor y_TI = at::empty({T, I}, gate_up_T2I.options());
  cpu::Run(cpu::FusedSwiGlu{LoopType(gate_up_T2I), T, I, gate_up_T2I.const_data_ptr(),
                            y_TI.mutable_data_ptr()},
           AtenParallelFor());
  return y_TI;
}

}  // namespace taopd
