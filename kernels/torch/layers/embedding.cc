#include "kernels/torch/layers/embedding.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMinColumnsPerThread = 64;

// Threads share the columns, so that each sum runs in the order of the rows.
void AddRows(const at::Tensor& d_TH, const at::Tensor& ids_T, int64_t padding_id,
             const at::Tensor& table_VH) {
  const at::Tensor rows_TH = d_TH.to(at::kFloat).contiguous();
  const at::Tensor ids = ids_T.contiguous();
  const int64_t T = rows_TH.size(0), H = rows_TH.size(1);
  const float* const rows = rows_TH.const_data_ptr<float>();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  float* const table = table_VH.mutable_data_ptr<float>();
  ParallelLoop(H, kMinColumnsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < T; ++t) {
      if (id[t] == padding_id) continue;
      const float* const from = rows + t * H;
      float* const to = table + id[t] * H;
      for (int64_t h = begin; h < end; ++h) to[h] += from[h];
    }
  });
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table_VH,
                            const at::Tensor& ids_T, int64_t padding_id) {
    context->save_for_backward({table_VH, ids_T});
    context->saved_data["padding_id"] = padding_id;
    return at::embedding(table_VH, ids_T, padding_id);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &table_VH = saved[0], &ids_T = saved[1];
    const int64_t padding_id = context->saved_data["padding_id"].toInt();
    const at::Tensor target_VH = GradientTarget(table_VH);
    if (target_VH.defined() && target_VH.is_cpu() && UsesCustom(KernelKind::kLinear)) {
      AddRows(gradients[0], ids_T, padding_id, target_VH);
      return {at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const at::Tensor d_table_VH =
        at::embedding_dense_backward(gradients[0], ids_T, table_VH.size(0), padding_id,
                                     /*scale_grad_by_freq=*/false);
    return {GiveGradient(table_VH, d_table_VH), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Embedding(const at::Tensor& table_VH, const at::Tensor& ids_T, int64_t padding_id) {
  TORCH_CHECK(table_VH.dim() == 2 && ids_T.dim() == 1 && ids_T.scalar_type() == at::kLong,
              "the table has shape ", table_VH.sizes(), ", ids are ", ids_T.scalar_type(), " ",
              ids_T.sizes());
  if (!at::GradMode::is_enabled()) return at::embedding(table_VH, ids_T, padding_id);
  return EmbeddingFunction::apply(table_VH, ids_T, padding_id);
}

}  // namespace taopd
