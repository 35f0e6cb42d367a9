#include "common/model/layers/recomputed_part.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The data that a node of the graph keeps besides tensors.
template <typename T>
struct Holder : torch::CustomClassHolder {
  explicit Holder(T kept) : value(std::move(kept)) {}
  T value;
};

template <typename T>
void Keep(AutogradContext* context, const char* name, T value) {
  context->saved_data[name] =
      c10::IValue::make_capsule(c10::make_intrusive<Holder<T>>(std::move(value)));
}

template <typename T>
const T& Kept(AutogradContext* context, const char* name) {
  return static_cast<Holder<T>*>(context->saved_data.at(name).toCapsule().get())->value;
}

std::optional<at::Tensor> Optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

at::Tensor AsLeaf(const at::Tensor& tensor, bool needs_gradient) {
  return tensor.defined() ? tensor.detach().requires_grad_(needs_gradient) : tensor;
}

class RecomputedFunction : public torch::autograd::Function<RecomputedFunction> {
 public:
  // `anchor` requires a gradient and gets none. The parameters are not inputs of this function, and
  // its outputs must be part of the graph even if none of its inputs is.
  static variable_list forward(AutogradContext* context, const at::Tensor& sum,
                               const std::optional<at::Tensor>& norm, const at::Tensor& anchor,
                               const RecomputedPart& part) {
    context->set_materialize_grads(false);
    context->save_for_backward({sum});
    Keep(context, "part", part);
    context->saved_data["sum_needs"] = sum.requires_grad();
    context->saved_data["norm_needs"] = norm.has_value() && norm->requires_grad();
    SumAndNorm outputs;
    {
      const at::AutoGradMode records(true);
      outputs = part.run({AsLeaf(sum, sum.requires_grad()),
                          AsLeaf(norm.value_or(at::Tensor()), norm && norm->requires_grad())});
    }
    variable_list result = {outputs.sum_NH.detach()};
    if (outputs.normed_NH.defined()) result.push_back(outputs.normed_NH.detach());
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const RecomputedPart& part = Kept<RecomputedPart>(context, "part");
    const at::Tensor sum = context->get_saved_variables()[0];
    at::Tensor norm;
    if (part.norm) norm = part.norm(sum);
    const SumAndNorm inputs = {AsLeaf(sum, context->saved_data["sum_needs"].toBool()),
                               AsLeaf(norm, context->saved_data["norm_needs"].toBool())};
    norm.reset();
    variable_list outputs, upstream;
    {
      const at::AutoGradMode records(true);
      const SumAndNorm x = part.run(inputs);
      const at::Tensor* tensors[] = {&x.sum_NH, &x.normed_NH};
      for (size_t i = 0; i < gradients.size(); ++i) {
        // With adapters, a part and everything before it may have no trained parameters.
        if (!gradients[i].defined() || !tensors[i]->requires_grad()) continue;
        outputs.push_back(*tensors[i]);
        upstream.push_back(std::move(gradients[i]));
      }
    }
    gradients.clear();
    if (!outputs.empty()) torch::autograd::backward(outputs, upstream);
    return {inputs.sum_NH.grad(),
            inputs.normed_NH.defined() ? inputs.normed_NH.grad() : at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

class MarkedFunction : public torch::autograd::Function<MarkedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& sum,
                               const std::optional<at::Tensor>& norm,
                               const std::function<void()>& on_backward) {
    context->set_materialize_grads(false);
    Keep(context, "on_backward", on_backward);
    if (!norm.has_value()) return {sum.detach()};
    return {sum.detach(), norm->detach()};
  }

  // Autograd runs this node after all gradients have arrived. The nodes that add to .grad run
  // before it, because they come first among the nodes that are ready.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Kept<std::function<void()>>(context, "on_backward")();
    gradients.resize(2);
    gradients.emplace_back();
    return gradients;
  }
};

SumAndNorm AsSumAndNorm(const variable_list& tensors) {
  return {tensors[0], tensors.size() > 1 ? tensors[1] : at::Tensor()};
}

}  // namespace

SumAndNorm Recomputed(const RecomputedPart& part, const SumAndNorm& inputs) {
  if (!at::GradMode::is_enabled()) return part.run(inputs);
  const at::Tensor anchor = at::empty({0}, inputs.sum_NH.options()).requires_grad_(true);
  return AsSumAndNorm(
      RecomputedFunction::apply(inputs.sum_NH, Optional(inputs.normed_NH), anchor, part));
}

at::Tensor Recomputed(const std::function<at::Tensor(const at::Tensor& input)>& run,
                      const at::Tensor& input) {
  const auto part = [run](const SumAndNorm& x) -> SumAndNorm { return {run(x.sum_NH), {}}; };
  return Recomputed(RecomputedPart{part, nullptr}, {input, {}}).sum_NH;
}

SumAndNorm Marked(const SumAndNorm& x, std::function<void()> on_backward) {
  const bool records =
      x.sum_NH.requires_grad() || (x.normed_NH.defined() && x.normed_NH.requires_grad());
  if (!at::GradMode::is_enabled() || !records) return x;
  return AsSumAndNorm(MarkedFunction::apply(x.sum_NH, Optional(x.normed_NH), on_backward));
}

}  // namespace taopd
