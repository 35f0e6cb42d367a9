#include "common/model/layers/attention_plan.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>

#include "common/base/check.h"
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
    AddFullGroups();
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

  void AddFullGroups() {
    std::map<int64_t, std::vector<const SequenceRows*>> by_padded_len;
    for (const SequenceRows& sequence : sequences_) {
      by_padded_len[PaddedLength(sequence.length)].push_back(&sequence);
    }
    for (const auto& [padded_len, members] : by_padded_len) {
      int64_t length = 0;
      for (const SequenceRows* member : members) length = std::max(length, member->length);
      plan_.full_groups.push_back(
          {num_padded_rows(), static_cast<int64_t>(members.size()), length});
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

}  // namespace

AttentionPlan MakeAttentionPlan(const PackedBatch& batch, at::Device device) {
  return PlanBuilder(batch, device).Build();
}

}  // namespace taopd
