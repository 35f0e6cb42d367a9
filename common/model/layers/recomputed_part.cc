#include "common/model/layers/recomputed_part.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

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
  static variable_list forward(AutogradContext* context, const at::Tensor& first,
                               const std::optional<at::Tensor>& second, const at::Tensor& anchor,
                               const RecomputedPart& part) {
    context->set_materialize_grads(false);
    context->save_for_backward({first});
    Keep(context, "part", part);
    context->saved_data["first_needs"] = first.requires_grad();
    context->saved_data["second_needs"] = second.has_value() && second->requires_grad();
    TensorPair outputs;
    {
      const at::AutoGradMode records(true);
      outputs =
          part.run({AsLeaf(first, first.requires_grad()),
                    AsLeaf(second.value_or(at::Tensor()), second && second->requires_grad())});
    }
    variable_list result = {outputs.first.detach()};
    if (outputs.second.defined()) result.push_back(outputs.second.detach());
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const RecomputedPart& part = Kept<RecomputedPart>(context, "part");
    const at::Tensor saved = context->get_saved_variables()[0];
    at::Tensor second;
    if (part.second_input) second = part.second_input(saved);
    const TensorPair inputs = {AsLeaf(saved, context->saved_data["first_needs"].toBool()),
                               AsLeaf(second, context->saved_data["second_needs"].toBool())};
    second.reset();
    variable_list outputs, upstream;
    {
      const at::AutoGradMode records(true);
      TensorPair pair = part.run(inputs);
      const at::Tensor* tensors[] = {&pair.first, &pair.second};
      for (size_t i = 0; i < gradients.size(); ++i) {
        // With adapters, a part and everything before it may have no trained parameters.
        if (!gradients[i].defined() || !tensors[i]->requires_grad()) continue;
        outputs.push_back(*tensors[i]);
        upstream.push_back(std::move(gradients[i]));
      }
    }
    gradients.clear();
    if (!outputs.empty()) torch::autograd::backward(outputs, upstream);
    return {inputs.first.grad(), inputs.second.defined() ? inputs.second.grad() : at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

class MarkedFunction : public torch::autograd::Function<MarkedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& first,
                               const std::optional<at::Tensor>& second,
                               const std::function<void()>& on_backward) {
    context->set_materialize_grads(false);
    Keep(context, "on_backward", on_backward);
    if (!second.has_value()) return {first.detach()};
    return {first.detach(), second->detach()};
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

TensorPair AsPair(const variable_list& tensors) {
  return {tensors[0], tensors.size() > 1 ? tensors[1] : at::Tensor()};
}

}  // namespace

TensorPair Recomputed(const RecomputedPart& part, const TensorPair& inputs) {
  if (!at::GradMode::is_enabled()) return part.run(inputs);
  const at::Tensor anchor = at::empty({0}, inputs.first.options()).requires_grad_(true);
  return AsPair(RecomputedFunction::apply(inputs.first, Optional(inputs.second), anchor, part));
}

TensorPair Marked(const TensorPair& tensors, std::function<void()> on_backward) {
  const bool records =
      tensors.first.requires_grad() || (tensors.second.defined() && tensors.second.requires_grad());
  if (!at::GradMode::is_enabled() || !records) return tensors;
  return AsPair(MarkedFunction::apply(tensors.first, Optional(tensors.second), on_backward));
}

}  // namespace taopd
