#include "kernels/torch/attention/self_attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <optional>

#include "kernels/cpu/attention/causal/causal_attention.h"
#include "kernels/cpu/layers/fused_projections.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/tensor_data.h"
#include "taopd/layers/norms_and_swiglu.h"

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The tensors of a call. They are contiguous; the norms are undefined if there are none.
struct Inputs {
  at::Tensor qkv_TC, q_norm_D, k_norm_D, cos_T1D, sin_T1D;

  DataType type() const { return DataTypeOf(qkv_TC.scalar_type()); }
  int64_t num_rows() const { return qkv_TC.size(0); }
  int64_t head_size() const { return cos_T1D.size(-1); }
};

struct Heads {
  at::Tensor q_TND, k_TKD;
  at::Tensor inverse_rms_TA;  // undefined without norms, and where it is not requested
};

cpu::FusedHeads FusedHeadsOf(const Inputs& in, const SelfAttentionOptions& options) {
  cpu::FusedHeads heads;
  heads.dtype = in.type();
  heads.num_rows = in.num_rows();
  heads.num_heads = options.num_heads;
  heads.num_kv_heads = options.num_kv_heads;
  heads.head_size = in.head_size();
  heads.qkv_TC = DataOrNull(in.qkv_TC);
  heads.q_norm_D = DataOrNull(in.q_norm_D);
  heads.k_norm_D = DataOrNull(in.k_norm_D);
  heads.cos_TD = DataOrNull(in.cos_T1D);
  heads.sin_TD = DataOrNull(in.sin_T1D);
  return heads;
}

Heads PrepareHeads(const Inputs& in, const SelfAttentionOptions& options, bool keeps_rms) {
  const int64_t T = in.num_rows(), N = options.num_heads, K = options.num_kv_heads,
                D = in.head_size();
  Heads heads;
  heads.q_TND = at::empty({T, N, D}, in.qkv_TC.options());
  heads.k_TKD = at::empty({T, K, D}, in.qkv_TC.options());
  cpu::FusedRotation problem{FusedHeadsOf(in, options)};
  problem.eps = static_cast<float>(options.eps);
  problem.queries_TND = heads.q_TND.mutable_data_ptr();
  problem.keys_TKD = heads.k_TKD.mutable_data_ptr();
  if (keeps_rms && in.q_norm_D.defined()) {
    heads.inverse_rms_TA = at::empty({T, N + K}, in.qkv_TC.options().dtype(at::kFloat));
    problem.inverse_rms_TA = heads.inverse_rms_TA.mutable_data_ptr<float>();
  }
  cpu::RotateFusedHeads(problem, TorchParallelFor());
  return heads;
}

// Fills in the fields that the forward and the backward problem share. The values stay in q | k |
// v.
template <typename Problem>
Problem MakeProblem(const Inputs& in, const Heads& heads, const SelfAttentionOptions& options) {
  const int64_t N = options.num_heads, K = options.num_kv_heads, D = in.head_size();
  Problem problem;
  problem.dtype = in.type();
  problem.cu_seqlens = options.cu_seqlens.data();
  problem.num_sequences = static_cast<int64_t>(options.cu_seqlens.size()) - 1;
  if (!options.parents.empty()) problem.parents = options.parents.data();
  problem.num_heads = N;
  problem.num_kv_heads = K;
  problem.head_size = D;
  problem.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  problem.sliding_window = options.sliding_window;
  problem.q_TND = DataOrNull(heads.q_TND);
  problem.q_stride = N * D;
  problem.k_TKD = DataOrNull(heads.k_TKD);
  problem.k_stride = K * D;
  problem.v_TKD =
      static_cast<const char*>(DataOrNull(in.qkv_TC)) + (N + K) * D * SizeOf(problem.dtype);
  problem.v_stride = (N + 2 * K) * D;
  return problem;
}

struct Output {
  at::Tensor out_TC;
  at::Tensor log_sum_exp_TN;  // undefined where it is not requested
};

Output Forward(const Inputs& in, const SelfAttentionOptions& options, bool keeps_sums) {
  const int64_t T = in.num_rows(), N = options.num_heads, D = in.head_size();
  const Heads heads = PrepareHeads(in, options, /*keeps_rms=*/false);
  Output output;
  output.out_TC = at::empty({T, N * D}, in.qkv_TC.options());
  auto problem = MakeProblem<cpu::CausalAttentionForward>(in, heads, options);
  problem.out_TND = output.out_TC.mutable_data_ptr();
  problem.out_stride = N * D;
  if (keeps_sums) {
    output.log_sum_exp_TN = at::empty({T, N}, in.qkv_TC.options().dtype(at::kFloat));
    problem.log_sum_exp_TN = output.log_sum_exp_TN.mutable_data_ptr<float>();
  }
  cpu::AttendCausally(problem, TorchParallelFor());
  return output;
}

struct Gradients {
  at::Tensor d_qkv_TC;
  at::Tensor d_norms_2D;  // float32, for the queries' and the keys' norm; undefined without norms
};

Gradients Backward(const Inputs& in, const Output& forward, const at::Tensor& d_out_TC,
                   const SelfAttentionOptions& options) {
  const int64_t T = in.num_rows(), N = options.num_heads, K = options.num_kv_heads,
                D = in.head_size();
  const Heads heads = PrepareHeads(in, options, /*keeps_rms=*/true);
  const at::Tensor d_q_TND = at::empty_like(heads.q_TND), d_k_TKD = at::empty_like(heads.k_TKD);
  Gradients gradients;
  gradients.d_qkv_TC = at::empty_like(in.qkv_TC);
  void* const d_qkv = gradients.d_qkv_TC.mutable_data_ptr();

  auto attention = MakeProblem<cpu::CausalAttentionBackward>(in, heads, options);
  attention.out_TND = DataOrNull(forward.out_TC);
  attention.out_stride = N * D;
  attention.log_sum_exp_TN = forward.log_sum_exp_TN.const_data_ptr<float>();
  attention.d_out_TND = DataOrNull(d_out_TC);
  attention.d_out_stride = N * D;
  attention.d_q_TND = d_q_TND.mutable_data_ptr();
  attention.d_q_stride = N * D;
  attention.d_k_TKD = d_k_TKD.mutable_data_ptr();
  attention.d_k_stride = K * D;
  attention.d_v_TKD = static_cast<char*>(d_qkv) + (N + K) * D * SizeOf(attention.dtype);
  attention.d_v_stride = (N + 2 * K) * D;
  cpu::AttendCausallyBackward(attention, TorchParallelFor());

  const auto floats = in.qkv_TC.options().dtype(at::kFloat);
  const at::Tensor partials = at::empty({NumPartials(T), 2, D}, floats);
  cpu::FusedRotationBackward rotation{FusedHeadsOf(in, options)};
  rotation.d_queries_TND = DataOrNull(d_q_TND);
  rotation.d_keys_TKD = DataOrNull(d_k_TKD);
  rotation.d_qkv_TC = d_qkv;
  rotation.partials_P2D = partials.mutable_data_ptr<float>();
  if (in.q_norm_D.defined()) {
    rotation.inverse_rms_TA = heads.inverse_rms_TA.const_data_ptr<float>();
    gradients.d_norms_2D = at::empty({2, D}, floats);
    rotation.d_norms_2D = gradients.d_norms_2D.mutable_data_ptr<float>();
  }
  cpu::RotateFusedHeadsBackward(rotation, TorchParallelFor());
  return gradients;
}

class SelfAttentionFunction : public torch::autograd::Function<SelfAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv_TC,
                            const std::optional<at::Tensor>& q_norm_D,
                            const std::optional<at::Tensor>& k_norm_D, const at::Tensor& cos_T1D,
                            const at::Tensor& sin_T1D, const SelfAttentionOptions& options) {
    const Inputs in = {qkv_TC, q_norm_D.value_or(at::Tensor()), k_norm_D.value_or(at::Tensor()),
                       cos_T1D, sin_T1D};
    const Output output = Forward(in, options, /*keeps_sums=*/true);
    context->save_for_backward({in.qkv_TC, in.q_norm_D, in.k_norm_D, in.cos_T1D, in.sin_T1D,
                                output.out_TC, output.log_sum_exp_TN});
    context->saved_data["num_heads"] = options.num_heads;
    context->saved_data["num_kv_heads"] = options.num_kv_heads;
    context->saved_data["eps"] = options.eps;
    context->saved_data["sliding_window"] = options.sliding_window;
    context->saved_data["cu_seqlens"] = options.cu_seqlens;
    context->saved_data["parents"] = options.parents;
    return output.out_TC;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Inputs in = {saved[0], saved[1], saved[2], saved[3], saved[4]};
    const Output output = {saved[5], saved[6]};
    SelfAttentionOptions options;
    options.num_heads = context->saved_data["num_heads"].toInt();
    options.num_kv_heads = context->saved_data["num_kv_heads"].toInt();
    options.eps = context->saved_data["eps"].toDouble();
    options.sliding_window = context->saved_data["sliding_window"].toInt();
    options.cu_seqlens = context->saved_data["cu_seqlens"].toIntVector();
    options.parents = context->saved_data["parents"].toIntVector();
    const at::Tensor d_out_TC = gradients[0].to(in.qkv_TC.scalar_type()).contiguous();
    const Gradients computed = Backward(in, output, d_out_TC, options);
    at::Tensor d_q_norm_D, d_k_norm_D;
    if (computed.d_norms_2D.defined()) {
      if (context->needs_input_grad(1)) {
        d_q_norm_D = GiveGradient(in.q_norm_D, computed.d_norms_2D.select(0, 0));
      }
      if (context->needs_input_grad(2)) {
        d_k_norm_D = GiveGradient(in.k_norm_D, computed.d_norms_2D.select(0, 1));
      }
    }
    return {computed.d_qkv_TC, d_q_norm_D, d_k_norm_D, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void Check(const Inputs& in, const SelfAttentionOptions& options) {
  const at::Tensor& qkv = in.qkv_TC;
  TORCH_CHECK(
      qkv.is_cpu() && (qkv.scalar_type() == at::kFloat || qkv.scalar_type() == at::kBFloat16),
      "q | k | v is ", qkv.scalar_type(), " on ", qkv.device(),
      ", must be float32 or bfloat16 on the CPU");
  const int64_t N = options.num_heads, K = options.num_kv_heads;
  TORCH_CHECK(K > 0 && N > 0 && N % K == 0, "there are ", N, " query heads and ", K,
              " key-value heads");
  TORCH_CHECK(qkv.dim() == 2 && in.cos_T1D.dim() == 3 && in.cos_T1D.size(2) % 2 == 0 &&
                  qkv.size(1) == (N + 2 * K) * in.head_size(),
              "q | k | v has shape ", qkv.sizes(), " and cos ", in.cos_T1D.sizes(), " for ", N,
              " + 2 * ", K, " heads");
  for (const at::Tensor& table : {in.cos_T1D, in.sin_T1D}) {
    TORCH_CHECK(table.sizes() == at::IntArrayRef({qkv.size(0), 1, in.head_size()}) &&
                    table.options().type_equal(qkv.options()) && !table.requires_grad(),
                "cos or sin is ", table.toString(), " of shape ", table.sizes(), " for ",
                qkv.size(0), " rows of ", qkv.toString());
  }
  TORCH_CHECK(in.q_norm_D.defined() == in.k_norm_D.defined(),
              "the norms are both defined or neither");
  for (const at::Tensor& norm : {in.q_norm_D, in.k_norm_D}) {
    TORCH_CHECK(
        !norm.defined() || (norm.sizes() == at::IntArrayRef({in.head_size()}) &&
                            norm.options().type_equal(qkv.options()) && norm.is_contiguous()),
        "a norm is ", norm.toString(), " of shape ", norm.sizes(), ", must be ", qkv.toString(),
        " of shape [", in.head_size(), "]");
  }
  const std::vector<int64_t>& ends = options.cu_seqlens;
  TORCH_CHECK(!ends.empty() && ends.front() == 0 && ends.back() == qkv.size(0),
              "the sequences do not cover the ", qkv.size(0), " rows");
  for (size_t i = 1; i < ends.size(); ++i) {
    TORCH_CHECK(ends[i - 1] <= ends[i], "sequence ", i - 1, " has a negative length");
  }
  const std::vector<int64_t>& parents = options.parents;
  TORCH_CHECK(parents.empty() || parents.size() + 1 == ends.size(), "there are ", parents.size(),
              " parents of ", ends.size() - 1, " sequences");
  for (size_t i = 0; i < parents.size(); ++i) {
    TORCH_CHECK(parents[i] == -1 || (parents[i] >= 0 && parents[i] < static_cast<int64_t>(i) &&
                                     parents[static_cast<size_t>(parents[i])] == -1),
                "sequence ", i, " cannot continue sequence ", parents[i]);
  }
}

}  // namespace

at::Tensor SelfAttention(const at::Tensor& qkv_TC, const at::Tensor& q_norm_D,
                         const at::Tensor& k_norm_D, const at::Tensor& cos_T1D,
                         const at::Tensor& sin_T1D, const SelfAttentionOptions& options) {
  RECORD_USER_SCOPE("taopd::attention");
  const Inputs in = {qkv_TC.contiguous(), q_norm_D, k_norm_D, cos_T1D.contiguous(),
                     sin_T1D.contiguous()};
  Check(in, options);
  if (!at::GradMode::is_enabled()) return Forward(in, options, /*keeps_sums=*/false).out_TC;
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  return SelfAttentionFunction::apply(in.qkv_TC, optional(q_norm_D), optional(k_norm_D), in.cos_T1D,
                                      in.sin_T1D, options);
}

}  // namespace taopd
