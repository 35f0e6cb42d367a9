#include "kernels/torch/layers/norms_and_swiglu.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>
#include <string>

#include "kernels/torch/composed/norms_and_swiglu.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/device_kernels.h"
#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/tensor_data.h"
#include "taopd/layers/norms_and_swiglu.h"

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

bool HasKernels(KernelKind kind, const at::Tensor& x) {
  if (!UsesCustom(kind)) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) return false;
  return x.is_cpu() || DeviceKernelsFor(x.device()) != nullptr;
}

// Runs the problem on the device of `like`, which has kernels.
template <typename Problem>
void RunKernel(KernelKind kind, const Problem& problem, const at::Tensor& like,
               void (*on_cpu)(const Problem&, const ParallelFor&),
               std::string (*DeviceKernels::*kernel)(const Problem&, const DeviceContext&)) {
  const DeviceKernels* const kernels = DeviceKernelsFor(like.device());
  if (kernels == nullptr) return on_cpu(problem, TorchParallelFor());
  const DeviceCall call(kind, like);
  CheckLaunch((kernels->*kernel)(problem, call.Context()));
}

at::Tensor EmptyFloats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}
bool Records(const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || (b.defined() && b.requires_grad()));
}

void CheckAlike(const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  TORCH_CHECK(tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device(), name,
              " is ", tensor.scalar_type(), " on ", tensor.device(), " but x is ", x.scalar_type(),
              " on ", x.device());
}
void CheckNormWeight(const at::Tensor& weight, const at::Tensor& x) {
  CheckAlike("weight", weight, x);
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) >= 1, "x has shape ", x.sizes());
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == x.size(-1), "weight has shape ",
              weight.sizes(), " but the rows of x have ", x.size(-1), " elements");
}

// Fills in the fields that the forward and the backward problem of a function share. The tensors
// are contiguous and outlive the problem.
template <typename Problem>
Problem NormProblem(const at::Tensor& x_NH, const at::Tensor& weight_H) {
  Problem problem;
  problem.dtype = DataTypeOf(x_NH.scalar_type());
  problem.size = weight_H.size(0);
  problem.num_rows = x_NH.numel() / problem.size;
  problem.x_NH = DataOrNull(x_NH);
  problem.weight_H = DataOrNull(weight_H);
  return problem;
}

// shape_TAD is any tensor of the heads' shape and type. x may be undefined.
template <typename Problem>
Problem HeadsProblem(const at::Tensor& shape_TAD, const at::Tensor& x_TAD,
                     const at::Tensor& weight_D, const at::Tensor& cos_T1D,
                     const at::Tensor& sin_T1D) {
  Problem problem;
  problem.dtype = DataTypeOf(shape_TAD.scalar_type());
  problem.num_tokens = shape_TAD.size(0);
  problem.num_heads = shape_TAD.size(1);
  problem.head_size = shape_TAD.size(2);
  problem.x_TAD = DataOrNull(x_TAD);
  problem.weight_D = DataOrNull(weight_D);
  problem.cos_TD = DataOrNull(cos_T1D);
  problem.sin_TD = DataOrNull(sin_T1D);
  return problem;
}

template <typename Problem>
Problem SwiGluProblem(const at::Tensor& gate, const at::Tensor& up) {
  Problem problem;
  problem.dtype = DataTypeOf(gate.scalar_type());
  problem.size = gate.numel();
  problem.gate = DataOrNull(gate);
  problem.up = DataOrNull(up);
  return problem;
}

struct NormOutput {
  at::Tensor sum_NH;  // x itself if nothing is added
  at::Tensor normed_NH;
  at::Tensor inverse_rms_N;
};

NormOutput NormForward(const at::Tensor& x_NH, const at::Tensor& added_NH,
                       const at::Tensor& weight_H, double eps, bool keeps_rms) {
  const at::Tensor x = x_NH.contiguous(), weight = weight_H.contiguous();
  const at::Tensor added = added_NH.defined() ? added_NH.contiguous() : added_NH;
  auto problem = NormProblem<RmsNormForward>(x, weight);
  problem.eps = static_cast<float>(eps);
  NormOutput output;
  output.sum_NH = added.defined() ? at::empty_like(x) : x;
  output.normed_NH = at::empty_like(x);
  if (keeps_rms) output.inverse_rms_N = EmptyFloats({problem.num_rows}, x);
  problem.added_NH = DataOrNull(added);
  if (added.defined()) problem.sum_NH = MutableDataOrNull(output.sum_NH);
  problem.normed_NH = MutableDataOrNull(output.normed_NH);
  problem.inverse_rms_N = MutableDataOrNull<float>(output.inverse_rms_N);
  RunKernel(KernelKind::kNorm, problem, x, cpu::NormalizeRows, &DeviceKernels::rms_norm_forward);
  return output;
}

// Returns {normed, sum}, or {normed} without `added`.
class RmsNormFunction : public Function<RmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x_NH,
                               const std::optional<at::Tensor>& added_NH,
                               const at::Tensor& weight_H, double eps) {
    const NormOutput output = NormForward(x_NH, added_NH.value_or(at::Tensor()), weight_H, eps,
                                          /*keeps_rms=*/true);
    context->set_materialize_grads(false);
    context->save_for_backward({output.sum_NH, weight_H, output.inverse_rms_N});
    if (!added_NH.has_value()) return {output.normed_NH};
    return {output.normed_NH, output.sum_NH};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool has_added = gradients.size() == 2;
    const at::Tensor d_sum =
        has_added && gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    if (!gradients[0].defined()) {
      return {d_sum, has_added ? d_sum : at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const at::Tensor d_normed = gradients[0].contiguous(), whole_weight = weight.contiguous();
    auto problem = NormProblem<RmsNormBackward>(x, whole_weight);
    const at::Tensor d_x = at::empty_like(x), d_weight = at::empty_like(whole_weight);
    const at::Tensor partials = EmptyFloats({NumPartials(problem.num_rows), problem.size}, x);
    problem.inverse_rms_N = saved[2].const_data_ptr<float>();
    problem.d_normed_NH = DataOrNull(d_normed);
    problem.d_sum_NH = DataOrNull(d_sum);
    problem.d_x_NH = MutableDataOrNull(d_x);
    problem.d_weight_H = MutableDataOrNull(d_weight);
    problem.partials_PH = MutableDataOrNull<float>(partials);
    RunKernel(KernelKind::kNorm, problem, x, cpu::NormalizeRowsBackward,
              &DeviceKernels::rms_norm_backward);
    return {d_x, has_added ? d_x : at::Tensor(), GiveGradient(weight, d_weight), at::Tensor()};
  }
};

struct HeadsOutput {
  at::Tensor out_TAD;
  at::Tensor inverse_rms_TA;  // undefined without a weight, and where it is not requested
};

HeadsOutput RotateForward(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                          const at::Tensor& cos_T1D, const at::Tensor& sin_T1D, bool keeps_rms) {
  const at::Tensor x = x_TAD.contiguous(), cos = cos_T1D.contiguous(), sin = sin_T1D.contiguous();
  const at::Tensor weight = weight_D.defined() ? weight_D.contiguous() : weight_D;
  auto problem = HeadsProblem<HeadsForward>(x, x, weight, cos, sin);
  problem.eps = static_cast<float>(eps);
  HeadsOutput output;
  output.out_TAD = at::empty_like(x);
  if (keeps_rms && weight.defined()) output.inverse_rms_TA = EmptyFloats({x.size(0), x.size(1)}, x);
  problem.out_TAD = MutableDataOrNull(output.out_TAD);
  problem.inverse_rms_TA = MutableDataOrNull<float>(output.inverse_rms_TA);
  RunKernel(KernelKind::kRotation, problem, x, cpu::RotateHeads, &DeviceKernels::heads_forward);
  return output;
}

class NormRotateHeadsFunction : public Function<NormRotateHeadsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TAD,
                            const std::optional<at::Tensor>& weight_D, double eps,
                            const at::Tensor& cos_T1D, const at::Tensor& sin_T1D) {
    const at::Tensor weight = weight_D.value_or(at::Tensor());
    const HeadsOutput output = RotateForward(x_TAD, weight, eps, cos_T1D, sin_T1D, true);
    // Without a norm the rotation's gradient needs no x.
    context->save_for_backward({weight.defined() ? x_TAD.contiguous() : at::Tensor(), weight,
                                output.inverse_rms_TA, cos_T1D, sin_T1D});
    return output.out_TAD;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor weight = saved[1].defined() ? saved[1].contiguous() : at::Tensor();
    const at::Tensor cos = saved[3].contiguous(), sin = saved[4].contiguous();
    at::Tensor d_out = gradients[0];
    if (d_out.stride(2) != 1) d_out = d_out.contiguous();
    auto problem = HeadsProblem<HeadsBackward>(d_out, x, weight, cos, sin);
    const at::Tensor d_x = at::empty(d_out.sizes(), d_out.options());
    at::Tensor d_weight, partials;
    if (weight.defined()) {
      d_weight = at::empty_like(weight);
      partials = EmptyFloats({NumPartials(problem.num_tokens), problem.head_size}, d_out);
      problem.inverse_rms_TA = saved[2].const_data_ptr<float>();
    }
    problem.d_out_TAD = DataOrNull(d_out);
    problem.d_out_token_stride = d_out.stride(0);
    problem.d_out_head_stride = d_out.stride(1);
    problem.d_x_TAD = MutableDataOrNull(d_x);
    problem.d_weight_D = MutableDataOrNull(d_weight);
    problem.partials_PD = MutableDataOrNull<float>(partials);
    RunKernel(KernelKind::kRotation, problem, d_out, cpu::RotateHeadsBackward,
              &DeviceKernels::heads_backward);
    return {d_x, GiveGradient(saved[1], d_weight), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor SwiGluForwardOf(const at::Tensor& gate_any, const at::Tensor& up_any) {
  const at::Tensor gate = gate_any.contiguous(), up = up_any.contiguous();
  const at::Tensor y = at::empty_like(gate);
  auto problem = SwiGluProblem<SwiGluForward>(gate, up);
  problem.y = MutableDataOrNull(y);
  RunKernel(KernelKind::kSwiGlu, problem, gate, cpu::ComputeSwiGlu, &DeviceKernels::swiglu_forward);
  return y;
}

class SwiGluFunction : public Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return SwiGluForwardOf(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor gate = saved[0].contiguous(), up = saved[1].contiguous(),
                     d_y = gradients[0].contiguous();
    const at::Tensor d_gate = at::empty_like(gate), d_up = at::empty_like(up);
    auto problem = SwiGluProblem<SwiGluBackward>(gate, up);
    problem.d_y = DataOrNull(d_y);
    problem.d_gate = MutableDataOrNull(d_gate);
    problem.d_up = MutableDataOrNull(d_up);
    RunKernel(KernelKind::kSwiGlu, problem, gate, cpu::ComputeSwiGluBackward,
              &DeviceKernels::swiglu_backward);
    return {d_gate, d_up};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  RECORD_USER_SCOPE("taopd::norm");
  CheckNormWeight(weight_H, x_NH);
  if (!HasKernels(KernelKind::kNorm, x_NH)) return RmsNormComposed(x_NH, weight_H, eps);
  if (Records(x_NH, weight_H)) return RmsNormFunction::apply(x_NH, std::nullopt, weight_H, eps)[0];
  return NormForward(x_NH, at::Tensor(), weight_H, eps, /*keeps_rms=*/false).normed_NH;
}

SumAndNorm AddRmsNorm(const at::Tensor& x_NH, const at::Tensor& added_NH,
                      const at::Tensor& weight_H, double eps) {
  RECORD_USER_SCOPE("taopd::norm");
  CheckNormWeight(weight_H, x_NH);
  CheckAlike("added", added_NH, x_NH);
  TORCH_CHECK(added_NH.sizes() == x_NH.sizes(), "added has shape ", added_NH.sizes(), " but x has ",
              x_NH.sizes());
  if (!HasKernels(KernelKind::kNorm, x_NH)) {
    const at::Tensor sum = x_NH + added_NH;
    return {sum, RmsNormComposed(sum, weight_H, eps)};
  }
  if (Records(x_NH, weight_H) || Records(added_NH, weight_H)) {
    const variable_list outputs =
        RmsNormFunction::apply(x_NH, std::optional<at::Tensor>(added_NH), weight_H, eps);
    return {outputs[1], outputs[0]};
  }
  const NormOutput output = NormForward(x_NH, added_NH, weight_H, eps, /*keeps_rms=*/false);
  return {output.sum_NH, output.normed_NH};
}

at::Tensor NormRotateHeads(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                           const at::Tensor& cos_T1D, const at::Tensor& sin_T1D) {
  RECORD_USER_SCOPE("taopd::rope");
  TORCH_CHECK(x_TAD.dim() == 3 && x_TAD.size(2) % 2 == 0, "x has shape ", x_TAD.sizes(),
              ", must be [tokens, heads, even head size]");
  if (weight_D.defined()) CheckNormWeight(weight_D, x_TAD);
  for (const auto& [name, table] : {std::pair{"cos", cos_T1D}, {"sin", sin_T1D}}) {
    CheckAlike(name, table, x_TAD);
    TORCH_CHECK(table.dim() == 3 && table.size(0) == x_TAD.size(0) && table.size(1) == 1 &&
                    table.size(2) == x_TAD.size(2),
                name, " has shape ", table.sizes(), " but x has ", x_TAD.sizes());
    TORCH_CHECK(!table.requires_grad(), name, " requires a gradient, which is not computed");
  }
  if (!HasKernels(KernelKind::kRotation, x_TAD))
    return NormRotateHeadsComposed(x_TAD, weight_D, eps, cos_T1D, sin_T1D);
  if (Records(x_TAD, weight_D)) {
    return NormRotateHeadsFunction::apply(
        x_TAD, weight_D.defined() ? std::optional<at::Tensor>(weight_D) : std::nullopt, eps,
        cos_T1D, sin_T1D);
  }
  return RotateForward(x_TAD, weight_D, eps, cos_T1D, sin_T1D, /*keeps_rms=*/false).out_TAD;
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  RECORD_USER_SCOPE("taopd::swiglu");
  CheckAlike("up", up, gate);
  TORCH_CHECK(up.sizes() == gate.sizes(), "up has shape ", up.sizes(), " but gate has ",
              gate.sizes());
  if (!HasKernels(KernelKind::kSwiGlu, gate)) return SwiGluComposed(gate, up);
  if (Records(gate, up)) return SwiGluFunction::apply(gate, up);
  return SwiGluForwardOf(gate, up);
}

}  // namespace taopd
