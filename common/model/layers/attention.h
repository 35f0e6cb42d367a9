// Causal attention of a pack of whole sequences, differentiable. Each Forward makes a plan once,
// and every layer uses it.
//
// The plan reorders the rows of the pack into padded rows, so that sequences that are computed
// together are adjacent and padded to one length.
//
// Shapes: T rows of the pack, P padded rows, N heads (key-value heads for keys and values), D
// head_dim.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/model/decoder.h"

namespace taopd {

struct AttentionPlan {
  // Sequences that are computed together.
  struct Group {
    int64_t first_padded_row, num_sequences, padded_len;
  };

  at::Tensor positions_T;
  int64_t num_positions = 0;  // all positions are below this

  bool padded_is_packed = false;  // if the two orders are the same, nothing needs to be gathered
  at::Tensor packed_row_P;        // the row of the pack at each padded row; arbitrary for padding
  at::Tensor padded_row_T;        // the padded row of each row of the pack
  at::Tensor padding_P1;          // bool; defined only if gradients are recorded

  std::vector<Group> groups;
};

// Makes the plan. If sequences have parents, only the positions are set.
// REQUIRES: the batch is well formed (decoder.h).
AttentionPlan MakeAttentionPlan(const PackedBatch& batch, at::Device device);

// Returns [T, N * D] without ever making a [T, T] matrix over the whole pack. Queries and keys are
// already rotated. sliding_window is that of ModelConfig::SlidingWindow.
at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     int64_t sliding_window, const AttentionPlan& plan);

}  // namespace taopd
