// How the attention of one packed batch is computed. A plan is made once per Forward and is used by
// every layer.
//
// The plan reorders the rows of the pack into "spots", so that sequences that are computed together
// are adjacent and padded to one length:
//   full groups   whole sequences, of which the cache holds nothing yet, padded to one length
//   chunks        sequences that continue from the cache with more than one token
//   decode        all sequences that continue from the cache with one token
//
// Shapes: N tokens of the batch, T rows of the pack (N, plus the rows that RowsForStableGemm adds),
// P spots, R decoding rows, L keys.
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
    int64_t num_rows = 0;          // R; 0 if nothing decodes
    int64_t first_slot = 0;        // row r reads slot first_slot + r ...
    at::Tensor slots_R;            // ... or, if this is defined, slots_R[r]
    int64_t kv_len = 0;            // L; read from every slot
    at::Tensor mask_R11L;          // 0 or -inf, in the model's dtype
    at::Tensor sliding_mask_R11L;  // for sliding layers; undefined if there are none
  };

  int64_t num_tokens = 0;  // N
  int64_t num_rows = 0;    // T
  at::Tensor positions_T;
  int64_t num_positions = 0;  // all positions are below this

  bool spots_are_rows = false;  // the two orders are the same, so nothing needs to be gathered
  at::Tensor row_of_spot_P;     // an arbitrary row for a padding spot
  at::Tensor spot_of_row_T;
  at::Tensor padding_P1;       // bool; defined only if gradients are recorded
  int64_t num_full_spots = 0;  // the spots of the full groups come first

  std::vector<FullGroup> full_groups;
  std::vector<Chunk> chunks;
  Decode decode;

  // Where the keys and values of each token go in the cache.
  at::Tensor slots_N;
  at::Tensor positions_N;
};

// `cache` is null for a batch without one. `sliding_window` is that of the model's sliding layers;
// 0 if it has none. REQUIRES: the batch is well formed (decoder.h) and fits the cache.
AttentionPlan MakeAttentionPlan(const PackedBatch& batch, const KvCache* cache, at::Device device,
                                at::ScalarType dtype, int64_t sliding_window = 0);

}  // namespace taopd
