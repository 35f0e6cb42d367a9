// How the attention of one packed batch is computed: made once a Forward, used by every layer.
//
// The rows of the pack are brought into an order of "spots", in which the sequences that are
// computed together lie padded side by side:
//   full groups   whole sequences (nothing in the cache yet), B of them padded to one length
//   chunks        sequences that continue from the cache with more than one token
//   decode        sequences that continue with one token, all together
// T rows of the pack, P spots.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/model/decoder.h"
#include "common/model/layers/kv_cache.h"

namespace taopd {

struct AttentionPlan {
  struct FullGroup {
    int64_t first_spot, num_sequences, padded_len;
  };
  struct Chunk {
    int64_t first_spot, length, slot, past_len;
  };
  struct Decode {
    int64_t first_spot = 0;
    int64_t num_rows = 0;          // R; 0 when nothing decodes
    int64_t first_slot = 0;        // row r reads slot first_slot + r, ...
    at::Tensor slots_R;            // ... or slots_R[r] where this is defined
    int64_t kv_len = 0;            // keys read of every slot
    at::Tensor mask_R11L;          // 0 or -inf, in the model's dtype
    at::Tensor sliding_mask_R11L;  // of sliding layers; undefined without them
  };

  int64_t num_tokens = 0;  // of the batch
  int64_t num_rows = 0;    // T: tokens and the rows appended to them (see RowsForStableGemm)
  at::Tensor positions_T;
  int64_t num_positions = 0;  // above all positions

  bool spots_are_rows = false;  // the two orders are the same: nothing to gather
  at::Tensor row_of_spot_P;     // some row for a padding spot
  at::Tensor spot_of_row_T;
  at::Tensor padding_P1;       // bool; only when gradients are recorded
  int64_t num_full_spots = 0;  // the spots of full groups come first

  std::vector<FullGroup> full_groups;
  std::vector<Chunk> chunks;
  Decode decode;

  at::Tensor slots_N;  // N tokens of the batch: where their keys and values go in the cache
  at::Tensor positions_N;
};

// REQUIRES: the batch is well formed (decoder.h) and fits the cache. sliding_window is that of the
// model's sliding layers, 0 where it has none.
AttentionPlan MakeAttentionPlan(const PackedBatch& batch, const KvCache* cache, at::Device device,
                                at::ScalarType dtype, int64_t sliding_window = 0);

}  // namespace taopd
