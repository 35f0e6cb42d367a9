#include "kernels/torch/layers/fused_projections.h"

#include "kernels/cpu/layers/fused_projections.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/tensor_data.h"

namespace taopd {
namespace {

bool HasCpuLoops(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

}  // namespace

void NormRotateFused(const at::Tensor& qkv_TC, const at::Tensor& q_norm_D,
                     const at::Tensor& k_norm_D, double eps, const at::Tensor& cos_T1D,
                     const at::Tensor& sin_T1D, const RotatedHeads& heads) {
  const int64_t T = qkv_TC.size(0), D = cos_T1D.size(-1);
  const int64_t N = heads.queries_TND.size(1), K = heads.keys_TKD.size(1);
  TORCH_CHECK(qkv_TC.is_contiguous() && qkv_TC.size(1) == (N + 2 * K) * D, "qkv has shape ",
              qkv_TC.sizes(), " for ", N, " + 2 * ", K, " heads of ", D);
  TORCH_CHECK(heads.queries_TND.is_contiguous() && heads.keys_TKD.is_contiguous() &&
                  heads.queries_TND.size(0) == T && heads.keys_TKD.size(0) == T,
              "queries have shape ", heads.queries_TND.sizes(), ", keys ", heads.keys_TKD.sizes(),
              " for ", T, " rows");
  if (!HasCpuLoops(qkv_TC)) {
    const auto rotate = [&](int64_t first, const at::Tensor& norm_D, const at::Tensor& out_TAD) {
      const int64_t A = out_TAD.size(1);
      out_TAD.copy_(NormRotateHeads(qkv_TC.narrow(1, first * D, A * D).reshape({T, A, D}), norm_D,
                                    eps, cos_T1D, sin_T1D));
    };
    rotate(0, q_norm_D, heads.queries_TND);
    rotate(N, k_norm_D, heads.keys_TKD);
    return;
  }
  cpu::FusedRotation problem;
  problem.dtype = DataTypeOf(qkv_TC.scalar_type());
  problem.num_rows = T;
  problem.num_heads = N;
  problem.num_kv_heads = K;
  problem.head_size = D;
  problem.eps = static_cast<float>(eps);
  problem.qkv_TC = qkv_TC.const_data_ptr();
  problem.q_norm_D = DataOrNull(q_norm_D);
  problem.k_norm_D = DataOrNull(k_norm_D);
  problem.cos_TD = cos_T1D.const_data_ptr();
  problem.sin_TD = sin_T1D.const_data_ptr();
  problem.queries_TND = heads.queries_TND.mutable_data_ptr();
  problem.keys_TKD = heads.keys_TKD.mutable_data_ptr();
  cpu::RotateFusedHeads(problem, TorchParallelFor());
}

void SwiGluFused(const at::Tensor& gate_up_T2I, const at::Tensor& y_TI) {
  const int64_t T = gate_up_T2I.size(0), I = gate_up_T2I.size(1) / 2;
  TORCH_CHECK(gate_up_T2I.is_contiguous() && gate_up_T2I.size(1) % 2 == 0 && y_TI.is_contiguous() &&
                  y_TI.sizes() == at::IntArrayRef({T, I}),
              "gate | up has shape ", gate_up_T2I.sizes(), ", y ", y_TI.sizes());
  if (!HasCpuLoops(gate_up_T2I)) {
    y_TI.copy_(
        SwiGlu(gate_up_T2I.narrow(1, 0, I).contiguous(), gate_up_T2I.narrow(1, I, I).contiguous()));
    return;
  }
  cpu::ComputeFusedSwiGlu(cpu::FusedSwiGlu{DataTypeOf(gate_up_T2I.scalar_type()), T, I,
                                           gate_up_T2I.const_data_ptr(), y_TI.mutable_data_ptr()},
                          TorchParallelFor());
}

at::Tensor SwiGluFusedBackward(const at::Tensor& gate_up_T2I, const at::Tensor& d_y_TI) {
  const int64_t T = gate_up_T2I.size(0), I = gate_up_T2I.size(1) / 2;
  const at::Tensor d_y = d_y_TI.contiguous();
  TORCH_CHECK(HasCpuLoops(gate_up_T2I) && d_y.scalar_type() == gate_up_T2I.scalar_type() &&
                  gate_up_T2I.is_contiguous() && d_y.sizes() == at::IntArrayRef({T, I}),
              "gate | up is ", gate_up_T2I.toString(), " of shape ", gate_up_T2I.sizes(),
              ", d_y is ", d_y.toString(), " of shape ", d_y.sizes());
  const at::Tensor d_gate_up_T2I = at::empty_like(gate_up_T2I);
  cpu::ComputeFusedSwiGluBackward(
      cpu::FusedSwiGluBackward{DataTypeOf(gate_up_T2I.scalar_type()), T, I,
                               gate_up_T2I.const_data_ptr(), d_y.const_data_ptr(),
                               d_gate_up_T2I.mutable_data_ptr()},
      TorchParallelFor());
  return d_gate_up_T2I;
}

}  // namespace taopd
