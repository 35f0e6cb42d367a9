#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <string>

#include "kernels/torch/composed/norms_and_swiglu.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {
namespace {

using Tensors = std::vector<at::Tensor>;

// The differentiable functions of a layer: a trial computes their outputs and, for training, the
// gradients of the inputs.
class LayerTrial : public Trial {
 public:
  LayerTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : shape_(shape), random_(shape.device, seed), kernels_(kernels) {}

  std::vector<OutputError> Errors() const final {
    return Compare(Named(custom_), Named(composed_));
  }

  void RunCustom() final {
    const ScopedDeviceKernels kernels(kernels_);
    custom_ = Results([this](const Tensors& inputs) { return Layer(inputs); });
  }
  void RunComposed() final {
    composed_ = Results([this](const Tensors& inputs) { return Composition(inputs); });
  }

 protected:
  // Both return the outputs.
  virtual Tensors Layer(const Tensors& inputs) const = 0;
  virtual Tensors Composition(const Tensors& inputs) const = 0;

  const SelfCheckShape shape_;
  RandomNumbers random_;
  std::vector<std::string> names_;  // of the outputs, then of the gradients
  Tensors inputs_, d_outputs_;

 private:
  template <typename Function>
  Tensors Results(const Function& function) const {
    const at::AutoGradMode records(shape_.trains);
    Tensors leaves;
    for (const at::Tensor& input : inputs_) {
      leaves.push_back(input.detach().requires_grad_(shape_.trains));
    }
    Tensors results = function(leaves);
    if (!shape_.trains) return results;
    const Tensors gradients = torch::autograd::grad(results, leaves, d_outputs_);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  }

  std::vector<NamedTensor> Named(const Tensors& values) const {
    std::vector<NamedTensor> named;
    for (size_t i = 0; i < values.size(); ++i) {
      named.push_back({names_[i], values[i], AllowedFor(shape_.dtype)});
    }
    return named;
  }

  const DeviceKernels& kernels_;
  Tensors custom_, composed_;
};

class NormTrial final : public LayerTrial {
 public:
  NormTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(shape, kernels, seed) {
    const std::vector<int64_t> size_NH = {shape.num_rows, shape.hidden_size};
    inputs_ = {random_.Normal(size_NH, shape.dtype), random_.Normal(size_NH, shape.dtype),
               random_.NormWeight(shape.hidden_size, shape.dtype)};
    d_outputs_ = {random_.Normal(size_NH, shape.dtype), random_.Normal(size_NH, shape.dtype)};
    names_ = {"sum", "normed", "d x", "d added", "d weight"};
  }

 private:
  Tensors Layer(const Tensors& inputs) const override {
    const SumAndNorm both = AddRmsNorm(inputs[0], inputs[1], inputs[2], shape_.eps);
    return {both.sum_NH, both.normed_NH};
  }
  Tensors Composition(const Tensors& inputs) const override {
    const at::Tensor sum = inputs[0] + inputs[1];
    return {sum, RmsNormComposed(sum, inputs[2], shape_.eps)};
  }
};

class RotationTrial final : public LayerTrial {
 public:
  RotationTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(shape, kernels, seed) {
    const int64_t D = shape.head_size;
    const std::vector<int64_t> size_TAD = {shape.num_rows, shape.num_heads, D};
    inputs_ = {random_.Normal(size_TAD, shape.dtype)};
    if (shape.qk_norm) inputs_.push_back(random_.NormWeight(D, shape.dtype));
    d_outputs_ = {random_.Normal(size_TAD, shape.dtype)};
    tables_ = random_.Rotations(shape.num_rows, D, shape.dtype);
    names_ = {"heads", "d x", "d weight"};
  }

 private:
  Tensors Layer(const Tensors& inputs) const override {
    return {
        NormRotateHeads(inputs[0], Weight(inputs), shape_.eps, tables_.cos_T1D, tables_.sin_T1D)};
  }
  Tensors Composition(const Tensors& inputs) const override {
    return {NormRotateHeadsComposed(inputs[0], Weight(inputs), shape_.eps, tables_.cos_T1D,
                                    tables_.sin_T1D)};
  }
  static at::Tensor Weight(const Tensors& inputs) {
    return inputs.size() > 1 ? inputs[1] : at::Tensor();
  }

  RandomNumbers::RotationTables tables_;
};

class SwiGluTrial final : public LayerTrial {
 public:
  SwiGluTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(shape, kernels, seed) {
    const std::vector<int64_t> size_TI = {shape.num_rows, shape.intermediate_size};
    inputs_ = {random_.Normal(size_TI, shape.dtype, 2), random_.Normal(size_TI, shape.dtype)};
    d_outputs_ = {random_.Normal(size_TI, shape.dtype)};
    names_ = {"product", "d gate", "d up"};
  }

 private:
  Tensors Layer(const Tensors& inputs) const override { return {SwiGlu(inputs[0], inputs[1])}; }
  Tensors Composition(const Tensors& inputs) const override {
    return {SwiGluComposed(inputs[0], inputs[1])};
  }
};

}  // namespace

std::vector<TrialKind> LayerTrials() {
  return {{KernelKind::kNorm, NewTrial<NormTrial>, /*only_training=*/false},
          {KernelKind::kRotation, NewTrial<RotationTrial>, /*only_training=*/false},
          {KernelKind::kSwiGlu, NewTrial<SwiGluTrial>, /*only_training=*/false}};
}

}  // namespace taopd
