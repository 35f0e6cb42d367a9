#include "common/model/layers/attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "kernels/torch/composed/visible_keys.h"

namespace taopd {
namespace {

// The row of the source for each row of the result, and the inverse.
struct RowGather {
  at::Tensor index;
  at::Tensor inverse;
  at::Tensor no_gradient;  // rows of the source that the result does not contain; may be undefined
};

// Selects rows of x by index, where every row that counts is selected exactly once. Its gradient is
// therefore a gather by the inverse index: fast, and in a fixed order on every device, unlike
// index_add.
class GatherRowsFunction : public torch::autograd::Function<GatherRowsFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const RowGather& gather) {
    context->save_for_backward({gather.inverse, gather.no_gradient});
    return x.index_select(0, gather.index);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor dx = gradients[0].index_select(0, saved[0]);
    if (saved[1].defined()) dx.masked_fill_(saved[1], 0);
    return {dx, at::Tensor()};
  }
};

at::Tensor RowsToSpots(const at::Tensor& x_T, const AttentionPlan& plan) {
  if (plan.padded_is_packed) return x_T;
  if (at::GradMode::is_enabled()) {
    return GatherRowsFunction::apply(x_T,
                                     RowGather{plan.packed_row_P, plan.padded_row_T, at::Tensor()});
  }
  return x_T.index_select(0, plan.packed_row_P);
}

at::Tensor SpotsToRows(const at::Tensor& x_P, const AttentionPlan& plan) {
  if (plan.padded_is_packed) return x_P;
  if (at::GradMode::is_enabled()) {
    return GatherRowsFunction::apply(
        x_P, RowGather{plan.padded_row_T, plan.packed_row_P, plan.padding_P1});
  }
  return x_P.index_select(0, plan.padded_row_T);
}

// Whole sequences, padded on the right: under a causal mask, no query that counts sees the padding.
at::Tensor FullAttention(const at::Tensor& q_PND, const at::Tensor& k_PND, const at::Tensor& v_PND,
                         const AttentionPlan::FullGroup& group, int64_t sliding_window) {
  const int64_t B = group.num_sequences, L = group.padded_len;
  const bool grouped_heads = q_PND.size(1) != k_PND.size(1);
  const auto heads_first = [&](const at::Tensor& x_PND) {
    return x_PND.narrow(0, group.first_padded_row, B * L)
        .view({B, L, x_PND.size(1), x_PND.size(2)})
        .transpose(1, 2);
  };
  const at::Tensor q_BNLD = heads_first(q_PND), k_BNLD = heads_first(k_PND),
                   v_BNLD = heads_first(v_PND);
  at::Tensor out_BNLD;
  if (sliding_window == 0 || L <= sliding_window) {
    out_BNLD = at::scaled_dot_product_attention(q_BNLD, k_BNLD, v_BNLD, /*attn_mask=*/std::nullopt,
                                                /*dropout_p=*/0.0, /*is_causal=*/true,
                                                /*scale=*/std::nullopt, grouped_heads);
  } else {
    std::vector<at::Tensor> blocks;
    for (int64_t start = 0; start < L; start += kQueryBlock) {
      const int64_t num_queries = std::min(kQueryBlock, L - start);
      const VisibleKeys keys = KeysOfBlock(start, num_queries, sliding_window, q_PND.options());
      blocks.push_back(at::scaled_dot_product_attention(
          q_BNLD.narrow(2, start, num_queries), k_BNLD.narrow(2, keys.first, keys.length),
          v_BNLD.narrow(2, keys.first, keys.length), keys.mask_QL, 0.0, /*is_causal=*/false,
          std::nullopt, grouped_heads));
    }
    out_BNLD = at::cat(blocks, 2);
  }
  return out_BNLD.transpose(1, 2).reshape({B * L, q_PND.size(1) * q_PND.size(2)});
}

}  // namespace

at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     int64_t sliding_window, const AttentionPlan& plan) {
  RECORD_USER_SCOPE("taopd::attention");
  const at::Tensor q_PND = RowsToSpots(q_TND, plan);
  const at::Tensor k_PND = RowsToSpots(k_TND, plan);
  const at::Tensor v_PND = RowsToSpots(v_TND, plan);
  std::vector<at::Tensor> out;
  for (const auto& group : plan.full_groups) {
    out.push_back(FullAttention(q_PND, k_PND, v_PND, group, sliding_window));
  }
  return SpotsToRows(out.size() == 1 ? out[0] : at::cat(out), plan);
}

}  // namespace taopd
