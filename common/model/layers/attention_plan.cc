#include "common/model/layers/attention_plan.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <limits>
#include <map>

#include "common/base/check.h"

namespace taopd {
namespace {

struct Sequence {
  int64_t first_row, length, past_len, slot;
};

std::vector<Sequence> ListSequences(const PackedBatch& batch, const KvCache* cache) {
  const auto& cu_seqlens = batch.cu_seqlens;
  TAOPD_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0);
  TAOPD_CHECK_EQ(cu_seqlens.back(), batch.token_ids_T.size(0));
  const size_t num_sequences = cu_seqlens.size() - 1;
  TAOPD_CHECK_EQ(batch.slots.size(), cache == nullptr ? 0 : num_sequences);
  TAOPD_CHECK_EQ(batch.past_lens.size(), cache == nullptr ? 0 : num_sequences);
  std::vector<Sequence> sequences;
  sequences.reserve(num_sequences);
  for (size_t b = 0; b < num_sequences; ++b) {
    const int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    TAOPD_CHECK_GE(length, 0);
    Sequence sequence = {cu_seqlens[b], length, 0, 0};
    if (cache != nullptr) {
      sequence.past_len = batch.past_lens[b];
      sequence.slot = batch.slots[b];
      TAOPD_CHECK(sequence.slot >= 0 && sequence.slot < cache->num_slots());
      TAOPD_CHECK_GE(sequence.past_len, 0);
      TAOPD_CHECK_LE(sequence.past_len + length, cache->tokens_per_slot());
    }
    if (length > 0) sequences.push_back(sequence);
  }
  return sequences;
}

// The least multiple of a step that is at most an eighth of n (but 8 at least). A function of the
// sequence's own length alone, so that its numbers do not depend on what it is grouped with.
int64_t PaddedLength(int64_t n) {
  int64_t step = 8;
  while (16 * step <= n) step *= 2;
  return (n + step - 1) / step * step;
}

class PlanBuilder {
 public:
  PlanBuilder(const PackedBatch& batch, const KvCache* cache, at::Device device,
              at::ScalarType dtype, int64_t sliding_window)
      : sequences_(ListSequences(batch, cache)),
        cache_(cache),
        device_(device),
        dtype_(dtype),
        sliding_window_(sliding_window) {
    plan_.num_tokens = batch.token_ids_T.size(0);
    const bool stable = !at::GradMode::is_enabled() && device.is_cpu();
    plan_.num_rows = stable ? RowsForStableGemm(plan_.num_tokens) : plan_.num_tokens;
    spot_of_row_.assign(plan_.num_rows, 0);
  }

  AttentionPlan Build() {
    AddPositions();
    AddFullGroups();
    plan_.num_full_spots = num_spots();
    AddChunks();
    AddDecode();
    Finish();
    return std::move(plan_);
  }

 private:
  int64_t num_spots() const { return static_cast<int64_t>(row_of_spot_.size()); }

  at::Tensor Upload(const std::vector<int64_t>& values) const {
    return at::tensor(values, at::kLong).to(device_);
  }

  void AddPositions() {
    std::vector<int64_t> positions(plan_.num_rows, 0), slots(plan_.num_tokens, 0);
    plan_.num_positions = 1;
    for (const Sequence& sequence : sequences_) {
      for (int64_t i = 0; i < sequence.length; ++i) {
        positions[sequence.first_row + i] = sequence.past_len + i;
        slots[sequence.first_row + i] = sequence.slot;
      }
      plan_.num_positions = std::max(plan_.num_positions, sequence.past_len + sequence.length);
    }
    plan_.positions_T = Upload(positions);
    if (cache_ == nullptr) return;
    plan_.slots_N = Upload(slots);
    plan_.positions_N = plan_.positions_T.narrow(0, 0, plan_.num_tokens);
  }

  void AddSpot(int64_t row) {
    spot_of_row_[row] = num_spots();
    row_of_spot_.push_back(row);
    is_padding_.push_back(false);
  }
  void AddPaddingSpots(int64_t num_spots) {
    row_of_spot_.resize(row_of_spot_.size() + num_spots, 0);
    is_padding_.resize(is_padding_.size() + num_spots, true);
  }

  void AddFullGroups() {
    std::map<int64_t, std::vector<const Sequence*>> by_padded_len;
    for (const Sequence& sequence : sequences_) {
      if (sequence.past_len == 0) by_padded_len[PaddedLength(sequence.length)].push_back(&sequence);
    }
    for (const auto& [padded_len, members] : by_padded_len) {
      int64_t length = padded_len;
      if (at::GradMode::is_enabled()) {  // training wants speed, not independence of the batch
        length = 0;
        for (const Sequence* member : members) length = std::max(length, member->length);
      }
      plan_.full_groups.push_back({num_spots(), static_cast<int64_t>(members.size()), length});
      for (const Sequence* member : members) {
        for (int64_t i = 0; i < member->length; ++i) AddSpot(member->first_row + i);
        AddPaddingSpots(length - member->length);
      }
    }
  }

  void AddChunks() {
    for (const Sequence& sequence : sequences_) {
      if (sequence.past_len == 0 || sequence.length == 1) continue;
      plan_.chunks.push_back({num_spots(), sequence.length, sequence.slot, sequence.past_len});
      for (int64_t i = 0; i < sequence.length; ++i) AddSpot(sequence.first_row + i);
    }
  }

  void AddDecode() {
    std::map<int64_t, const Sequence*> by_slot;
    for (const Sequence& sequence : sequences_) {
      if (sequence.past_len == 0 || sequence.length != 1) continue;
      TAOPD_CHECK(by_slot.emplace(sequence.slot, &sequence).second);
    }
    if (by_slot.empty()) return;
    AttentionPlan::Decode& decode = plan_.decode;
    decode.first_spot = num_spots();
    decode.first_slot = by_slot.begin()->first;
    const int64_t num_sequences = static_cast<int64_t>(by_slot.size());
    const int64_t slot_range = by_slot.rbegin()->first - decode.first_slot + 1;
    // Reading a few slots in between for nothing is cheaper than copying all keys and values
    // together.
    const bool read_in_place = slot_range <= 2 * num_sequences;
    decode.num_rows = read_in_place ? slot_range : num_sequences;
    std::vector<int64_t> slots, kv_lens;
    for (const auto& [slot, sequence] : by_slot) {
      while (read_in_place && decode.first_slot + static_cast<int64_t>(kv_lens.size()) < slot) {
        AddPaddingSpots(1);
        kv_lens.push_back(1);
      }
      AddSpot(sequence->first_row);
      slots.push_back(slot);
      kv_lens.push_back(sequence->past_len + 1);
      decode.kv_len = std::max(decode.kv_len, sequence->past_len + 1);
    }
    // The longest of the batch decides how many keys are read, but not the bits of the others:
    // masked keys add exact zeros, as long as whole vectors of 16 are summed (AVX-512; the rest is
    // summed apart).
    const int64_t whole_vectors_len = (PaddedLength(decode.kv_len) + 15) / 16 * 16;
    decode.kv_len = std::min(whole_vectors_len, cache_->tokens_per_slot());
    if (!read_in_place) decode.slots_R = Upload(slots);
    const at::Tensor columns_L =
        at::arange(decode.kv_len, at::TensorOptions().dtype(at::kLong).device(device_));
    const at::Tensor kv_lens_R1 = Upload(kv_lens).unsqueeze(1);
    const auto mask = [&](const at::Tensor& hidden_RL) {
      return at::zeros({decode.num_rows, decode.kv_len},
                       at::TensorOptions().dtype(dtype_).device(device_))
          .masked_fill_(hidden_RL, -std::numeric_limits<double>::infinity())
          .view({decode.num_rows, 1, 1, decode.kv_len});
    };
    const at::Tensor behind_RL = columns_L >= kv_lens_R1;
    decode.mask_R11L = mask(behind_RL);
    if (sliding_window_ > 0) {
      decode.sliding_mask_R11L =
          mask(behind_RL.logical_or(columns_L < kv_lens_R1 - sliding_window_));
    }
  }

  void Finish() {
    plan_.spots_are_rows = num_spots() == plan_.num_rows;
    for (int64_t i = 0; plan_.spots_are_rows && i < num_spots(); ++i) {
      plan_.spots_are_rows = row_of_spot_[i] == i && !is_padding_[i];
    }
    if (plan_.spots_are_rows) return;
    plan_.row_of_spot_P = Upload(row_of_spot_);
    plan_.spot_of_row_T = Upload(spot_of_row_);
    if (!at::GradMode::is_enabled()) return;
    const at::Tensor padding_P = at::empty({num_spots()}, at::kBool);
    std::copy(is_padding_.begin(), is_padding_.end(), padding_P.data_ptr<bool>());
    plan_.padding_P1 = padding_P.to(device_).unsqueeze(1);
  }

  const std::vector<Sequence> sequences_;
  const KvCache* const cache_;
  const at::Device device_;
  const at::ScalarType dtype_;
  const int64_t sliding_window_;
  AttentionPlan plan_;
  std::vector<int64_t> row_of_spot_, spot_of_row_;
  std::vector<bool> is_padding_;
};

}  // namespace

AttentionPlan MakeAttentionPlan(const PackedBatch& batch, const KvCache* cache, at::Device device,
                                at::ScalarType dtype, int64_t sliding_window) {
  return PlanBuilder(batch, cache, device, dtype, sliding_window).Build();
}

}  // namespace taopd
