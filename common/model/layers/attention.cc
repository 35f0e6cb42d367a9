#include "common/model/layers/attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>

#include "common/base/check.h"
#include "kernels/torch/composed/visible_keys.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

struct SequenceRows {
  int64_t first_row, length;
  int64_t first_position;  // follows those of the parent
};

std::vector<SequenceRows> ListSequences(const PackedBatch& batch) {
  const auto& cu_seqlens = batch.cu_seqlens;
  TAOPD_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0);
  TAOPD_CHECK_EQ(cu_seqlens.back(), batch.token_ids_T.size(0));
  std::vector<SequenceRows> sequences;
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    TAOPD_CHECK_GE(length, 0);
    const int64_t parent = batch.parents.empty() ? -1 : batch.parents[b];
    const int64_t position = parent < 0 ? 0 : cu_seqlens[parent + 1] - cu_seqlens[parent];
    if (length > 0) sequences.push_back({cu_seqlens[b], length, position});
  }
  return sequences;
}

// Returns the least multiple of a step that is at least n, where the step is at most an eighth of n
// (but at least 8), so that sequences of similar length are computed together.
int64_t PaddedLength(int64_t n) {
  int64_t step = 8;
  while (16 * step <= n) step *= 2;
  return RoundUp(n, step);
}

class PlanBuilder {
 public:
  PlanBuilder(const PackedBatch& batch, at::Device device)
      : sequences_(ListSequences(batch)), device_(device), only_positions_(!batch.parents.empty()) {
    padded_row_.assign(batch.token_ids_T.size(0), 0);
  }

  AttentionPlan Build() {
    AddPositions();
    if (only_positions_) return std::move(plan_);
    AddGroups();
    AddGathers();
    return std::move(plan_);
  }

 private:
  int64_t num_rows() const { return static_cast<int64_t>(padded_row_.size()); }
  int64_t num_padded_rows() const { return static_cast<int64_t>(packed_row_.size()); }

  at::Tensor Upload(const std::vector<int64_t>& values) const {
    return at::tensor(values, at::kLong).to(device_);
  }

  void AddPositions() {
    std::vector<int64_t> positions(num_rows(), 0);
    plan_.num_positions = 1;
    for (const SequenceRows& sequence : sequences_) {
      for (int64_t i = 0; i < sequence.length; ++i) {
        positions[sequence.first_row + i] = sequence.first_position + i;
      }
      plan_.num_positions =
          std::max(plan_.num_positions, sequence.first_position + sequence.length);
    }
    plan_.positions_T = Upload(positions);
  }

  void AddGroups() {
    std::map<int64_t, std::vector<const SequenceRows*>> by_padded_len;
    for (const SequenceRows& sequence : sequences_) {
      by_padded_len[PaddedLength(sequence.length)].push_back(&sequence);
    }
    for (const auto& [padded_len, members] : by_padded_len) {
      int64_t length = 0;
      for (const SequenceRows* member : members) length = std::max(length, member->length);
      plan_.groups.push_back({num_padded_rows(), static_cast<int64_t>(members.size()), length});
      for (const SequenceRows* member : members) {
        for (int64_t i = 0; i < length; ++i) AddPaddedRow(*member, i);
      }
    }
  }

  void AddPaddedRow(const SequenceRows& sequence, int64_t position) {
    const bool is_padding = position >= sequence.length;
    if (!is_padding) padded_row_[sequence.first_row + position] = num_padded_rows();
    packed_row_.push_back(is_padding ? 0 : sequence.first_row + position);
    is_padding_.push_back(is_padding);
  }

  void AddGathers() {
    plan_.padded_is_packed = num_padded_rows() == num_rows();
    for (int64_t i = 0; plan_.padded_is_packed && i < num_padded_rows(); ++i) {
      plan_.padded_is_packed = packed_row_[i] == i && !is_padding_[i];
    }
    if (plan_.padded_is_packed) return;
    plan_.packed_row_P = Upload(packed_row_);
    plan_.padded_row_T = Upload(padded_row_);
    if (!at::GradMode::is_enabled()) return;
    const at::Tensor padding_P = at::empty({num_padded_rows()}, at::kBool);
    std::copy(is_padding_.begin(), is_padding_.end(), padding_P.data_ptr<bool>());
    plan_.padding_P1 = padding_P.to(device_).unsqueeze(1);
  }

  const std::vector<SequenceRows> sequences_;
  const at::Device device_;
  const bool only_positions_;  // for sequences that share prefixes, only positions are set
  AttentionPlan plan_;
  std::vector<int64_t> packed_row_, padded_row_;
  std::vector<bool> is_padding_;
};

// The row of the source for each row of the result, and the inverse.
struct RowGather {
  at::Tensor index;
  at::Tensor inverse;
  at::Tensor no_gradient;  // rows of the source that the result does not contain; may be undefined
};

// Selects rows of x by index, where every row but padding is selected exactly once. Its gradient is
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

at::Tensor GatherRows(const at::Tensor& x, const RowGather& gather) {
  return at::GradMode::is_enabled() ? GatherRowsFunction::apply(x, gather)
                                    : x.index_select(0, gather.index);
}

at::Tensor PackedToPadded(const at::Tensor& x_T, const AttentionPlan& plan) {
  if (plan.padded_is_packed) return x_T;
  return GatherRows(x_T, {plan.packed_row_P, plan.padded_row_T, at::Tensor()});
}

at::Tensor PaddedToPacked(const at::Tensor& x_P, const AttentionPlan& plan) {
  if (plan.padded_is_packed) return x_P;
  return GatherRows(x_P, {plan.padded_row_T, plan.packed_row_P, plan.padding_P1});
}

// Whole sequences, padded on the right: under a causal mask, only queries of padding see padding.
at::Tensor AttentionOfGroup(const at::Tensor& q_PND, const at::Tensor& k_PND,
                            const at::Tensor& v_PND, const AttentionPlan::Group& group,
                            int64_t sliding_window) {
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

AttentionPlan MakeAttentionPlan(const PackedBatch& batch, at::Device device) {
  return PlanBuilder(batch, device).Build();
}

at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     int64_t sliding_window, const AttentionPlan& plan) {
  RECORD_USER_SCOPE("taopd::attention");
  const at::Tensor q_PND = PackedToPadded(q_TND, plan);
  const at::Tensor k_PND = PackedToPadded(k_TND, plan);
  const at::Tensor v_PND = PackedToPadded(v_TND, plan);
  std::vector<at::Tensor> out;
  for (const auto& group : plan.groups) {
    out.push_back(AttentionOfGroup(q_PND, k_PND, v_PND, group, sliding_window));
  }
  return PaddedToPacked(out.size() == 1 ? out[0] : at::cat(out), plan);
}

}  // namespace taopd
