#include "kernels/torch/head/student_head.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <string>

#ifdef TAOPD_CUDA
#include "kernels/torch/head/cuda_heads.h"
#endif
#include "kernels/torch/composed/student_head.h"
#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/head/student_head_cpu.h"
#include "kernels/torch/kernel_choice.h"
#include "taopd/objective/check_objective.h"

namespace taopd {
namespace {

void CheckTensor(const at::Tensor& tensor, const char* name, at::IntArrayRef shape,
                 at::ScalarType dtype, at::Device device) {
  TORCH_CHECK(tensor.sizes() == shape, name, " has shape ", tensor.sizes(), ", must be ", shape);
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " is ", tensor.scalar_type(), ", must be ",
              dtype);
  TORCH_CHECK(tensor.device() == device, name, " is on ", tensor.device(), " but hidden is on ",
              device);
}

void CheckTargets(const HeadTargets& targets, const ObjectiveTerms& objective, int64_t num_rows,
                  int64_t vocab_size, at::Device device) {
  const uint32_t traits = TraitsOf(objective);
  const std::string name_of_objective = NameOf(objective);
  const auto check = [&](const at::Tensor& tensor, const char* name, bool needed,
                         at::IntArrayRef shape, at::ScalarType dtype) {
    TORCH_CHECK(tensor.defined() || !needed, name, " is missing; objective ", name_of_objective,
                " needs it");
    if (tensor.defined()) CheckTensor(tensor, name, shape, dtype, device);
  };
  const at::Tensor& support = targets.support_ids_Nk;
  const int64_t k = support.defined() && support.dim() == 2 ? support.size(1) : 0;
  check(support, "support_ids", traits & kNeedsSupport, {num_rows, k}, at::kInt);
  check(targets.teacher_log_probs_Nk, "teacher_log_probs", support.defined(), {num_rows, k},
        at::kFloat);
  check(targets.teacher_log_tail_N, "teacher_log_tail", false, {num_rows}, at::kFloat);
  check(targets.sampled_ids_N, "sampled_ids", true, {num_rows}, at::kInt);
  check(targets.teacher_sampled_log_probs_N, "teacher_sampled_log_probs",
        traits & kNeedsTeacherSampled, {num_rows}, at::kFloat);
  check(targets.teacher_entropy_N, "teacher_entropy", traits & kNeedsTeacherEntropy, {num_rows},
        at::kFloat);
  check(targets.behavior_log_probs_N, "behavior_log_probs", false, {num_rows}, at::kFloat);
  check(targets.advantages_N, "advantages", traits & kNeedsAdvantage, {num_rows}, at::kFloat);
  check(targets.row_weights_N, "row_weights", true, {num_rows}, at::kFloat);
  TORCH_CHECK(!(traits & kNeedsSupport) || num_rows == 0 || k > 0,
              "support_ids has k = 0; objective ", name_of_objective, " needs a support");
  TORCH_CHECK(k <= vocab_size, "support_ids has k = ", k, ", larger than the vocabulary of ",
              vocab_size);
  TORCH_CHECK(!(traits & kNeedsFullVocabulary) || num_rows == 0 || k == vocab_size,
              "support_ids has k = ", k, ", must be the vocabulary of ", vocab_size, "; objective ",
              name_of_objective, " needs every token's log-prob");
}

void CheckTargetIds(const HeadTargets& targets, int64_t vocab_size) {
  const at::Tensor& support = targets.support_ids_Nk;
  if (support.defined()) CheckIds(support, "support_ids", -1, vocab_size);
  CheckIds(targets.sampled_ids_N, "sampled_ids", 0, vocab_size);
}

HeadTargets ContiguousTargets(HeadTargets targets) {
  for (at::Tensor* tensor : targets.Tensors()) {
    if (tensor->defined()) *tensor = tensor->contiguous();
  }
  return targets;
}

}  // namespace

HeadOutput StudentHead(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                       const HeadTargets& targets, const HeadOptions& options,
                       at::Tensor d_lm_head_VH) {
  const at::NoGradGuard no_grad;
  CheckHeadInputs(hidden_NH, lm_head_VH);
  const int64_t num_rows = hidden_NH.size(0);
  const int64_t vocab_size = lm_head_VH.size(0);
  const at::Device device = hidden_NH.device();
  const std::string problem = ProblemOf(options.objective);
  TORCH_CHECK(problem.empty(), problem);
  CheckTargets(targets, options.objective, num_rows, vocab_size, device);
  TORCH_CHECK(options.temperature > 0 && std::isfinite(options.temperature), "temperature is ",
              options.temperature, ", must be positive");
  if (d_lm_head_VH.defined()) {
    CheckTensor(d_lm_head_VH, "d_lm_head", lm_head_VH.sizes(), at::kFloat, device);
    TORCH_CHECK(d_lm_head_VH.is_contiguous(), "d_lm_head has strides ", d_lm_head_VH.strides(),
                ", must be contiguous");
  }

  const HeadTargets rows = ContiguousTargets(targets);
  bool is_composed = !UsesCustom(KernelKind::kStudentHead);
#ifdef TAOPD_CUDA
  if (device.is_cuda()) is_composed |= !StudentKernelTakes(options, PointersTo(rows).k);
  // The kernels check ids themselves.
  if (device.is_cuda() && !is_composed) {
    return StudentHeadCuda(hidden_NH, lm_head_VH, rows, options, d_lm_head_VH);
  }
#endif
  CheckTargetIds(rows, vocab_size);
  if (is_composed) {
    return StudentHeadComposed(hidden_NH, lm_head_VH, rows, options, d_lm_head_VH);
  }
  TORCH_CHECK(device.is_cpu(), "this build has no student's head on ", device);
  return StudentHeadCpu(hidden_NH, lm_head_VH, rows, options, d_lm_head_VH);
}

namespace {

struct StudentHeadFunction : torch::autograd::Function<StudentHeadFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden_NH,
                            const at::Tensor& lm_head_VH, const HeadTargets& targets,
                            const HeadOptions& options, HeadOutput* output) {
    const bool head_needs_gradient = lm_head_VH.requires_grad();
    at::Tensor d_lm_head_VH = head_needs_gradient ? GradientTarget(lm_head_VH) : at::Tensor();
    const bool adds_in_place = d_lm_head_VH.defined();
    if (head_needs_gradient && !adds_in_place) {
      CheckHeadInputs(hidden_NH, lm_head_VH);
      d_lm_head_VH = at::zeros(lm_head_VH.sizes(), lm_head_VH.options().dtype(at::kFloat));
    }
    *output = StudentHead(hidden_NH, lm_head_VH, targets, options, d_lm_head_VH);
    context->saved_data["d_hidden"] = output->d_hidden_NH;
    context->saved_data["adds_in_place"] = adds_in_place;
    if (head_needs_gradient && !adds_in_place)
      context->saved_data["d_lm_head"] = d_lm_head_VH.to(lm_head_VH.scalar_type());
    return (output->loss_N * targets.row_weights_N).sum();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor& upstream = gradients[0];
    const at::Tensor d_hidden = TakeSaved(context, "d_hidden");
    at::Tensor d_lm_head;
    // The backward pass of a loss starts with 1. On other devices than the CPU, reading the number
    // would wait.
    const bool is_one = upstream.is_cpu() && upstream.item<double>() == 1.0;
    if (context->saved_data.at("adds_in_place").toBool()) {
      // On a GPU, the check runs on the device, and the host does not wait.
      at::_assert_async(upstream.eq(1),
                        "the head's gradient has been added to .grad: the loss must not be scaled");
    } else if (context->needs_input_grad(1)) {
      d_lm_head = TakeSaved(context, "d_lm_head");
      if (!is_one) d_lm_head.mul_(upstream);
    }
    return {is_one ? d_hidden : d_hidden * upstream.to(d_hidden.scalar_type()), d_lm_head,
            at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  // Moves the tensor out: it may be as large as lm_head, and autograd adds to it in place.
  static at::Tensor TakeSaved(torch::autograd::AutogradContext* context, const char* name) {
    const auto found = context->saved_data.find(name);
    TORCH_CHECK(found != context->saved_data.end(),
                "the student's head has handed out its gradients: backward runs once");
    at::Tensor tensor = std::move(found->second).toTensor();
    context->saved_data.erase(found);
    return tensor;
  }
};

}  // namespace

at::Tensor StudentHeadLoss(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                           const HeadTargets& targets, const HeadOptions& options,
                           HeadOutput* output) {
  HeadOutput ignored;
  return StudentHeadFunction::apply(hidden_NH, lm_head_VH, targets, options,
                                    output != nullptr ? output : &ignored);
}

}  // namespace taopd
