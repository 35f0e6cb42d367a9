#include "common/model/layers/moe.h"

#include <ATen/ops/_grouped_mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "common/base/check.h"
#include "kernels/torch/gemm/linear.h"
#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {
namespace {

at::Tensor Expert(const at::Tensor& x_NH, const ExpertWeights& expert) {
  const at::Tensor none;
  const at::Tensor gate_NI = Linear(x_NH, expert.gate_IH, none);
  return Linear(SwiGlu(gate_NI, Linear(x_NH, expert.up_IH, none)), expert.down_HI, none);
}

// The S pairs sorted by expert; the pairs of one expert are in the order of their tokens.
struct ExpertOrder {
  at::Tensor pairs_S;   // pair t * k + i
  at::Tensor tokens_S;  // t
  // int64; the pairs of expert e end before place ends_E[e]. They stay on the device: counting with
  // bincount would wait for it.
  at::Tensor ends_E;
};

ExpertOrder SortByExpert(const Routing& routing, int64_t num_experts) {
  const at::NoGradGuard no_grad;
  const auto [experts_S, pairs_S] = at::sort(routing.experts_Tk.reshape({-1}),
                                             /*stable=*/std::optional<bool>(true), /*dim=*/0);
  const at::Tensor ids_E = at::arange(num_experts, experts_S.options());
  return {pairs_S, pairs_S.div(routing.experts_Tk.size(1), "floor"),
          at::searchsorted(experts_S, ids_E, /*out_int32=*/false, /*right=*/true)};
}

// Makes the stack of the experts' matrices a single tensor of autograd, without a copy: they
// already are views of it. The inputs are the matrices, which receive its gradient, followed by the
// stack.
class StackedParameters : public torch::autograd::Function<StackedParameters> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList experts_and_stack) {
    context->saved_data["num_experts"] = static_cast<int64_t>(experts_and_stack.size()) - 1;
    return {experts_and_stack.back().detach()};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::variable_list result = gradients[0].unbind(0);
    TAOPD_CHECK_EQ(static_cast<int64_t>(result.size()), context->saved_data["num_experts"].toInt());
    result.emplace_back();  // the stack itself is not a parameter
    return result;
  }
};

at::Tensor Stacked(const at::Tensor& stack, const std::vector<ExpertWeights>& experts,
                   at::Tensor ExpertWeights::*matrix) {
  if (!at::GradMode::is_enabled() || !(experts[0].*matrix).requires_grad()) return stack;
  torch::autograd::variable_list inputs;
  for (const ExpertWeights& expert : experts) inputs.push_back(expert.*matrix);
  inputs.push_back(stack);
  return StackedParameters::apply(at::TensorList(inputs))[0];
}

}  // namespace

Routing Route(const at::Tensor& router_logits_TE, const MoeConfig& config) {
  const at::Tensor probs_TE = at::softmax(router_logits_TE, -1, at::kFloat);
  auto [gates_Tk, experts_Tk] = at::topk(probs_TE, config.experts_per_token, -1);
  if (config.normalize_gates) gates_Tk = gates_Tk / gates_Tk.sum(-1, /*keepdim=*/true);
  return {gates_Tk.to(router_logits_TE.scalar_type()), experts_Tk};
}

at::Tensor ExpertsInTurn(const at::Tensor& x_TH, const Routing& routing, int64_t num_experts,
                         const ExpertFunction& expert) {
  const ExpertOrder order = SortByExpert(routing, num_experts);
  const at::Tensor ends_E = order.ends_E.to(at::kCPU);
  const at::Tensor gates_S = routing.gates_Tk.reshape({-1});
  at::Tensor out_TH = at::zeros(x_TH.sizes(), x_TH.options().dtype(at::kFloat));
  int64_t first = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t n = ends_E.const_data_ptr<int64_t>()[e] - first;
    if (n == 0) continue;
    const at::Tensor tokens_n = order.tokens_S.narrow(0, first, n);
    const at::Tensor y_nH = expert(e, x_TH.index_select(0, tokens_n));
    const at::Tensor gates_n1 =
        gates_S.index_select(0, order.pairs_S.narrow(0, first, n)).unsqueeze(1);
    out_TH = out_TH.index_add_(0, tokens_n, (y_nH * gates_n1).to(at::kFloat));
    first += n;
  }
  return out_TH.to(x_TH.scalar_type());
}

at::Tensor ExpertsInTurn(const at::Tensor& x_TH, const Routing& routing,
                         const MoeWeights& weights) {
  return ExpertsInTurn(x_TH, routing, static_cast<int64_t>(weights.experts.size()),
                       [&](int64_t e, const at::Tensor& x_nH) {
                         return Expert(x_nH, weights.experts[static_cast<size_t>(e)]);
                       });
}

at::Tensor ExpertsGrouped(const at::Tensor& x_TH, const Routing& routing,
                          const MoeWeights& weights) {
  const int64_t T = x_TH.size(0), H = x_TH.size(1), k = routing.experts_Tk.size(1);
  const ExpertOrder order = SortByExpert(routing, static_cast<int64_t>(weights.experts.size()));
  const at::Tensor offsets_E = order.ends_E.to(at::kInt);
  const auto grouped = [&](const at::Tensor& x, const at::Tensor& stack) {
    return at::_grouped_mm(x, stack.transpose(1, 2), offsets_E);
  };
  // Each pair is selected once, so a gradient by index is a permutation, whose order cannot vary.
  const at::Tensor x_SH =
      x_TH.unsqueeze(1).expand({T, k, H}).reshape({T * k, H}).index_select(0, order.pairs_S);
  const auto stacked = [&](const at::Tensor& stack, at::Tensor ExpertWeights::*matrix) {
    return Stacked(stack, weights.experts, matrix);
  };
  const at::Tensor gate_SI = grouped(x_SH, stacked(weights.gate_EIH, &ExpertWeights::gate_IH));
  const at::Tensor up_SI = grouped(x_SH, stacked(weights.up_EIH, &ExpertWeights::up_IH));
  const at::Tensor y_SH =
      grouped(SwiGlu(gate_SI, up_SI), stacked(weights.down_EHI, &ExpertWeights::down_HI));
  const at::Tensor position_of_pair_S = at::argsort(order.pairs_S);
  const at::Tensor y_TkH = y_SH.index_select(0, position_of_pair_S).view({T, k, H});
  return (y_TkH * routing.gates_Tk.unsqueeze(-1))
      .sum(1, /*keepdim=*/false, at::kFloat)
      .to(x_TH.scalar_type());
}

void StackExperts(MoeWeights* weights) {
  const auto stack = [&](at::Tensor ExpertWeights::*matrix) {
    std::vector<at::Tensor> matrices;
    for (const ExpertWeights& expert : weights->experts) matrices.push_back(expert.*matrix);
    const at::Tensor stacked = at::stack(matrices);
    for (size_t e = 0; e < weights->experts.size(); ++e) {
      weights->experts[e].*matrix = stacked.select(0, static_cast<int64_t>(e)).detach();
    }
    return stacked;
  };
  weights->gate_EIH = stack(&ExpertWeights::gate_IH);
  weights->up_EIH = stack(&ExpertWeights::up_IH);
  weights->down_EHI = stack(&ExpertWeights::down_HI);
}

bool HasGroupedProducts(const at::Tensor& router_EH, const MoeConfig& config) {
  constexpr int64_t kValuesOf16Bytes = 8;
  return router_EH.is_cuda() && router_EH.scalar_type() == at::kBFloat16 &&
         router_EH.size(1) % kValuesOf16Bytes == 0 &&
         config.intermediate_size % kValuesOf16Bytes == 0;
}

at::Tensor MoeBlock(const at::Tensor& x_TH, const MoeWeights& weights, const MoeConfig& config) {
  const Routing routing = Route(Linear(x_TH, weights.router_EH, at::Tensor()), config);
  return weights.gate_EIH.defined() ? ExpertsGrouped(x_TH, routing, weights)
                                    : ExpertsInTurn(x_TH, routing, weights);
}

}  // namespace taopd
