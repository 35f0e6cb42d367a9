#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <string>
#include <utility>

#include "kernels/torch/composed/norms_and_swiglu.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {
namespace {

using Tensors = std::vector<at::Tensor>;

const void* In(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* Out(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

void CheckLaunch(const std::string& wrong) { TORCH_CHECK(wrong.empty(), wrong); }

// The differentiable functions of a layer: a trial computes their outputs and, for training, the
// gradients of the inputs.
class LayerTrial : public Trial {
 public:
  LayerTrial(KernelKind kind, const SelfCheckShape& shape, const DeviceKernels& kernels,
             uint64_t seed)
      : shape_(shape), kernels_(kernels), random_(shape.device, seed), kind_(kind) {}

  KernelKind kind() const final { return kind_; }
  std::vector<OutputError> Errors() const final {
    return Compare(Named(custom_), Named(composed_));
  }

  void RunComposed() final {
    const at::AutoGradMode records(shape_.trains);
    Tensors leaves;
    for (const at::Tensor& input : inputs_) {
      leaves.push_back(input.detach().requires_grad_(shape_.trains));
    }
    composed_ = Composition(leaves);
    if (!shape_.trains) return;
    const Tensors gradients = torch::autograd::grad(composed_, leaves, d_outputs_);
    composed_.insert(composed_.end(), gradients.begin(), gradients.end());
  }

 protected:
  // Returns the outputs.
  virtual Tensors Composition(const Tensors& inputs) const = 0;

  at::Tensor Empty(const at::Tensor& like) const { return at::empty_like(like); }
  at::Tensor EmptyFloats(at::IntArrayRef shape) const {
    return at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(shape_.device));
  }
  DataType type() const { return DataTypeOf(shape_.dtype); }

  const SelfCheckShape shape_;
  const DeviceKernels& kernels_;
  RandomNumbers random_;
  std::vector<std::string> names_;  // of the outputs, then of the gradients
  Tensors inputs_, d_outputs_;
  Tensors custom_;

 private:
  std::vector<NamedTensor> Named(const Tensors& values) const {
    std::vector<NamedTensor> named;
    for (size_t i = 0; i < values.size(); ++i) {
      named.push_back({names_[i], values[i], AllowedFor(shape_.dtype)});
    }
    return named;
  }

  const KernelKind kind_;
  Tensors composed_;
};

class NormTrial final : public LayerTrial {
 public:
  NormTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(KernelKind::kNorm, shape, kernels, seed) {
    const std::vector<int64_t> size_NH = {shape.num_rows, shape.hidden_size};
    inputs_ = {random_.Normal(size_NH, shape.dtype), random_.Normal(size_NH, shape.dtype),
               random_.Normal({shape.hidden_size}, shape.dtype, 0.3).add_(1)};
    d_outputs_ = {random_.Normal(size_NH, shape.dtype), random_.Normal(size_NH, shape.dtype)};
    names_ = {"sum", "normed", "d x", "d added", "d weight"};
  }

  void RunCustom() override {
    const at::NoGradGuard no_grad;
    const DeviceCall call(kind(), inputs_[0]);
    const at::Tensor sum = Empty(inputs_[0]), normed = Empty(inputs_[0]);
    const at::Tensor inverse_rms = EmptyFloats({shape_.num_rows});
    RmsNormForward forward;
    forward.dtype = type();
    forward.num_rows = shape_.num_rows;
    forward.size = shape_.hidden_size;
    forward.eps = static_cast<float>(shape_.eps);
    forward.x_NH = In(inputs_[0]);
    forward.added_NH = In(inputs_[1]);
    forward.weight_H = In(inputs_[2]);
    forward.sum_NH = Out(sum);
    forward.normed_NH = Out(normed);
    forward.inverse_rms_N = inverse_rms.mutable_data_ptr<float>();
    CheckLaunch(kernels_.rms_norm_forward(forward, call.Context()));
    custom_ = {sum, normed};
    if (!shape_.trains) return;
    const at::Tensor d_x = Empty(sum), d_weight = Empty(inputs_[2]);
    const at::Tensor partials = EmptyFloats({NumPartials(shape_.num_rows), shape_.hidden_size});
    RmsNormBackward backward;
    backward.dtype = type();
    backward.num_rows = shape_.num_rows;
    backward.size = shape_.hidden_size;
    backward.x_NH = In(sum);
    backward.weight_H = In(inputs_[2]);
    backward.inverse_rms_N = inverse_rms.const_data_ptr<float>();
    backward.d_sum_NH = In(d_outputs_[0]);
    backward.d_normed_NH = In(d_outputs_[1]);
    backward.d_x_NH = Out(d_x);
    backward.d_weight_H = Out(d_weight);
    backward.partials_PH = partials.mutable_data_ptr<float>();
    CheckLaunch(kernels_.rms_norm_backward(backward, call.Context()));
    custom_.insert(custom_.end(), {d_x, d_x, d_weight});
  }

 private:
  Tensors Composition(const Tensors& inputs) const override {
    const at::Tensor sum = inputs[0] + inputs[1];
    return {sum, RmsNormComposed(sum, inputs[2], shape_.eps)};
  }
};

class RotationTrial final : public LayerTrial {
 public:
  RotationTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(KernelKind::kRotation, shape, kernels, seed) {
    const int64_t D = shape.head_size;
    const std::vector<int64_t> size_TAD = {shape.num_rows, shape.num_heads, D};
    inputs_ = {random_.Normal(size_TAD, shape.dtype)};
    if (shape.qk_norm) inputs_.push_back(random_.Normal({D}, shape.dtype, 0.3).add_(1));
    d_outputs_ = {random_.Normal(size_TAD, shape.dtype)};
    const at::Tensor angles = random_.Uniform({shape.num_rows, 1, D / 2}, at::kFloat).mul_(6);
    cos_T1D_ = at::cat({angles.cos(), angles.cos()}, 2).to(shape.dtype);
    sin_T1D_ = at::cat({-angles.sin(), angles.sin()}, 2).to(shape.dtype);
    names_ = {"heads", "d x", "d weight"};
  }

  void RunCustom() override {
    const at::NoGradGuard no_grad;
    const DeviceCall call(kind(), inputs_[0]);
    const at::Tensor weight = shape_.qk_norm ? inputs_[1] : at::Tensor();
    const at::Tensor out = Empty(inputs_[0]);
    const at::Tensor inverse_rms = EmptyFloats({shape_.num_rows, shape_.num_heads});
    auto forward = Problem<HeadsForward>(weight);
    forward.eps = static_cast<float>(shape_.eps);
    forward.x_TAD = In(inputs_[0]);
    forward.out_TAD = Out(out);
    if (weight.defined()) forward.inverse_rms_TA = inverse_rms.mutable_data_ptr<float>();
    CheckLaunch(kernels_.heads_forward(forward, call.Context()));
    custom_ = {out};
    if (!shape_.trains) return;
    const at::Tensor d_x = Empty(out), d_weight = weight.defined() ? Empty(weight) : weight;
    const at::Tensor partials = EmptyFloats({NumPartials(shape_.num_rows), shape_.head_size});
    auto backward = Problem<HeadsBackward>(weight);
    backward.d_out_TAD = In(d_outputs_[0]);
    backward.d_out_token_stride = d_outputs_[0].stride(0);
    backward.d_out_head_stride = d_outputs_[0].stride(1);
    backward.d_x_TAD = Out(d_x);
    if (weight.defined()) {
      backward.x_TAD = In(inputs_[0]);
      backward.inverse_rms_TA = inverse_rms.const_data_ptr<float>();
      backward.d_weight_D = Out(d_weight);
      backward.partials_PD = partials.mutable_data_ptr<float>();
    }
    CheckLaunch(kernels_.heads_backward(backward, call.Context()));
    custom_.push_back(d_x);
    if (weight.defined()) custom_.push_back(d_weight);
  }

 private:
  template <typename Heads>
  Heads Problem(const at::Tensor& weight) const {
    Heads heads;
    heads.dtype = type();
    heads.num_tokens = shape_.num_rows;
    heads.num_heads = shape_.num_heads;
    heads.head_size = shape_.head_size;
    heads.weight_D = In(weight);
    heads.cos_TD = In(cos_T1D_);
    heads.sin_TD = In(sin_T1D_);
    return heads;
  }

  Tensors Composition(const Tensors& inputs) const override {
    return {NormRotateHeadsComposed(inputs[0], inputs.size() > 1 ? inputs[1] : at::Tensor(),
                                    shape_.eps, cos_T1D_, sin_T1D_)};
  }

  at::Tensor cos_T1D_, sin_T1D_;
};

class SwiGluTrial final : public LayerTrial {
 public:
  SwiGluTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : LayerTrial(KernelKind::kSwiGlu, shape, kernels, seed) {
    const std::vector<int64_t> size_TI = {shape.num_rows, shape.intermediate_size};
    inputs_ = {random_.Normal(size_TI, shape.dtype, 2), random_.Normal(size_TI, shape.dtype)};
    d_outputs_ = {random_.Normal(size_TI, shape.dtype)};
    names_ = {"product", "d gate", "d up"};
  }

  void RunCustom() override {
    const at::NoGradGuard no_grad;
    const DeviceCall call(kind(), inputs_[0]);
    const at::Tensor y = Empty(inputs_[0]);
    CheckLaunch(kernels_.swiglu_forward({type(), y.numel(), In(inputs_[0]), In(inputs_[1]), Out(y)},
                                        call.Context()));
    custom_ = {y};
    if (!shape_.trains) return;
    const at::Tensor d_gate = Empty(y), d_up = Empty(y);
    CheckLaunch(kernels_.swiglu_backward({type(), y.numel(), In(inputs_[0]), In(inputs_[1]),
                                          In(d_outputs_[0]), Out(d_gate), Out(d_up)},
                                         call.Context()));
    custom_.insert(custom_.end(), {d_gate, d_up});
  }

 private:
  Tensors Composition(const Tensors& inputs) const override {
    return {SwiGluComposed(inputs[0], inputs[1])};
  }
};

}  // namespace

std::vector<TrialOfKind> LayerTrials() {
  return {{KernelKind::kNorm, NewTrial<NormTrial>, /*only_training=*/false},
          {KernelKind::kRotation, NewTrial<RotationTrial>, /*only_training=*/false},
          {KernelKind::kSwiGlu, NewTrial<SwiGluTrial>, /*only_training=*/false}};
}

}  // namespace taopd
