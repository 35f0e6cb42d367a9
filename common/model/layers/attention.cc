#include "common/model/layers/attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <limits>

#include "common/base/check.h"

namespace taopd {
namespace {

// Which row of the source each row of the result is, and the other way round.
struct RowGather {
  at::Tensor index;
  at::Tensor inverse;
  at::Tensor no_gradient;  // rows of the source that the result does not take; may be undefined
};

// Rows of x by index, where every row that counts is taken exactly once. Its gradient is then a
// gather by the inverse index: fast, and in a fixed order on every device, which index_add is not.
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

// Reorders [T, ...] into the first num_spots spots.
at::Tensor RowsToSpots(const at::Tensor& x_T, const AttentionPlan& plan, int64_t num_spots) {
  if (plan.spots_are_rows) return x_T.narrow(0, 0, num_spots);
  if (at::GradMode::is_enabled()) {
    return GatherRowsFunction::apply(
        x_T, RowGather{plan.row_of_spot_P, plan.spot_of_row_T, at::Tensor()});
  }
  return x_T.index_select(0, plan.row_of_spot_P.narrow(0, 0, num_spots));
}

at::Tensor SpotsToRows(const at::Tensor& x_P, const AttentionPlan& plan) {
  if (plan.spots_are_rows) return x_P;
  if (at::GradMode::is_enabled()) {
    return GatherRowsFunction::apply(
        x_P, RowGather{plan.spot_of_row_T, plan.row_of_spot_P, plan.padding_P1});
  }
  return x_P.index_select(0, plan.spot_of_row_T);
}

constexpr int64_t kQueryBlock = 256;

// Keys that a block of queries sees, and the mask over them: 0 or -inf.
struct VisibleKeys {
  int64_t first = 0, length = 0;
  at::Tensor mask_QL;
};

// Queries stand at positions [position, position + num_queries); keys at [0, ...).
VisibleKeys KeysOfBlock(int64_t position, int64_t num_queries, int64_t sliding_window,
                        const at::TensorOptions& options) {
  VisibleKeys keys;
  if (sliding_window > 0) keys.first = std::max<int64_t>(0, position - sliding_window + 1);
  keys.length = position + num_queries - keys.first;
  const auto hidden = [&] {
    return at::full({num_queries, keys.length}, -std::numeric_limits<double>::infinity(), options);
  };
  const int64_t diagonal = position - keys.first;  // column minus row of a query's own key
  keys.mask_QL = hidden().triu_(diagonal + 1);
  if (sliding_window > 0 && keys.length > sliding_window) {
    keys.mask_QL.add_(hidden().tril_(diagonal - sliding_window));
  }
  return keys;
}

// Whole sequences, padded on the right: under a causal mask no query that counts sees the padding.
at::Tensor FullAttention(const at::Tensor& q_PND, const at::Tensor& k_PND, const at::Tensor& v_PND,
                         const AttentionPlan::FullGroup& group, int64_t sliding_window) {
  const int64_t B = group.num_sequences, L = group.padded_len;
  const bool grouped_heads = q_PND.size(1) != k_PND.size(1);
  const auto heads_first = [&](const at::Tensor& x_PND) {
    return x_PND.narrow(0, group.first_spot, B * L)
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

// New tokens of one sequence against the cache, in blocks of queries so that the mask stays small.
at::Tensor ChunkAttention(const at::Tensor& q_PND, const at::Tensor& keys_SKCD,
                          const at::Tensor& values_SKCD, const AttentionPlan::Chunk& chunk,
                          int64_t sliding_window) {
  std::vector<at::Tensor> out;
  for (int64_t start = 0; start < chunk.length; start += kQueryBlock) {
    const int64_t num_queries = std::min(kQueryBlock, chunk.length - start);
    const VisibleKeys visible =
        KeysOfBlock(chunk.past_len + start, num_queries, sliding_window, q_PND.options());
    const at::Tensor q_1NQD =
        q_PND.narrow(0, chunk.first_spot + start, num_queries).transpose(0, 1).unsqueeze(0);
    const auto cached = [&](const at::Tensor& x_SKCD) {
      return x_SKCD.narrow(0, chunk.slot, 1).narrow(2, visible.first, visible.length);
    };
    const at::Tensor out_1NQD = at::scaled_dot_product_attention(
        q_1NQD, cached(keys_SKCD), cached(values_SKCD), visible.mask_QL, 0.0, /*is_causal=*/false,
        std::nullopt, /*enable_gqa=*/q_PND.size(1) != keys_SKCD.size(1));
    out.push_back(
        out_1NQD.squeeze(0).transpose(0, 1).reshape({num_queries, q_PND.size(1) * q_PND.size(2)}));
  }
  return out.size() == 1 ? out[0] : at::cat(out);
}

// One new token of each of R sequences against the cache, all at once.
at::Tensor DecodeAttention(const at::Tensor& q_PND, const at::Tensor& keys_SKCD,
                           const at::Tensor& values_SKCD, const AttentionPlan::Decode& decode,
                           bool slides) {
  const int64_t R = decode.num_rows, N = q_PND.size(1), D = q_PND.size(2), K = keys_SKCD.size(1);
  const auto cached = [&](const at::Tensor& x_SKCD) {
    const at::Tensor x_SKLD = x_SKCD.narrow(2, 0, decode.kv_len);
    return decode.slots_R.defined() ? x_SKLD.index_select(0, decode.slots_R)
                                    : x_SKLD.narrow(0, decode.first_slot, R);
  };
  // The N / K query heads that share a key-value head stand as queries of one head.
  const at::Tensor q_RKGD = q_PND.narrow(0, decode.first_spot, R).reshape({R, K, N / K, D});
  const at::Tensor out_RKGD =
      at::scaled_dot_product_attention(q_RKGD, cached(keys_SKCD), cached(values_SKCD),
                                       slides ? decode.sliding_mask_R11L : decode.mask_R11L);
  return out_RKGD.reshape({R, N * D});
}

void AppendToCache(const at::Tensor& k_TND, const at::Tensor& v_TND, const AttentionPlan& plan,
                   KvCache* cache, int64_t layer) {
  const auto append = [&](const at::Tensor& x_TND, at::Tensor& cached_SKCD) {
    cached_SKCD.transpose(1, 2).index_put_({plan.slots_N, plan.positions_N},
                                           x_TND.narrow(0, 0, plan.num_tokens));
  };
  append(k_TND, cache->keys(layer));
  append(v_TND, cache->values(layer));
}

}  // namespace

at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     const AttentionLayer& layer, const AttentionPlan& plan, KvCache* cache) {
  RECORD_USER_SCOPE("taopd::attention");
  if (cache != nullptr) {
    TAOPD_CHECK(!at::GradMode::is_enabled());
    AppendToCache(k_TND, v_TND, plan, cache, layer.number);
  }
  const int64_t num_spots = plan.spots_are_rows ? plan.num_rows : plan.row_of_spot_P.size(0);
  const at::Tensor q_PND = RowsToSpots(q_TND, plan, num_spots);
  std::vector<at::Tensor> out;
  if (!plan.full_groups.empty()) {
    const at::Tensor k_PND = RowsToSpots(k_TND, plan, plan.num_full_spots);
    const at::Tensor v_PND = RowsToSpots(v_TND, plan, plan.num_full_spots);
    for (const auto& group : plan.full_groups) {
      out.push_back(FullAttention(q_PND, k_PND, v_PND, group, layer.sliding_window));
    }
  }
  for (const auto& chunk : plan.chunks) {
    out.push_back(ChunkAttention(q_PND, cache->keys(layer.number), cache->values(layer.number),
                                 chunk, layer.sliding_window));
  }
  if (plan.decode.num_rows > 0) {
    out.push_back(DecodeAttention(q_PND, cache->keys(layer.number), cache->values(layer.number),
                                  plan.decode, layer.sliding_window > 0));
  }
  return SpotsToRows(out.size() == 1 ? out[0] : at::cat(out), plan);
}

}  // namespace taopd
