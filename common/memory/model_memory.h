// The sizes of a transformer's weights, caches and activations, from its configuration alone.
//
// Letters: V vocabulary size, H hidden size, I intermediate size, D head_dim, Q = heads * D,
// K = key-value heads * D, E experts, k experts per token, T rows of one step, b bytes of a value.
// All functions are pure.
#pragma once

#include <cstdint>

#include "common/model/config/model_config.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/data_type.h"

namespace taopd {

// A model's parameters, in values, by how they are stored. The sum is config.NumParameters().
struct WeightCounts {
  int64_t embedding = 0;    // V H
  int64_t head = 0;         // V H, or 0 if the head is tied to the embedding
  int64_t projections = 0;  // the matrices of the layers, routers included
  int64_t vectors = 0;      // norms and biases
};
WeightCounts CountWeights(const ModelConfig& config);

// The number of outputs of a panel of the packed layout.
inline constexpr int64_t kPanelOutputs = 64;

// Returns the type of the copy that the CPU kernels use: bfloat16 stays, everything else is
// float32.
DataType PackedDtype(DataType dtype);

// Returns the size of the packed copy of a layer's projections, summed over the layers: q k v
// fused, gate up fused, o and down. Each is [outputs rounded up to whole panels][inputs]. bfloat16
// takes 12 bits per number (kernels/cpu/gemm/coded_panel.h); the engine subtracts the additional
// bytes of a matrix that cannot be coded from the pool of pages.
int64_t PackedProjectionBytes(const ModelConfig& config, DataType dtype);
// Returns the size of the packed copy of the output head: [V rounded up to whole panels][H].
int64_t PackedHeadBytes(const ModelConfig& config, DataType dtype);

// Returns the size of one block of kBlockTokens tokens over all layers. On the CPU it has the
// layout of the attention kernels (taopd/attention/paged_attention.h), and float16 models keep
// float32.
int64_t KvBlockBytes(const ModelConfig& config, DataType dtype, bool on_cpu);

// Returns the largest sum of tensors that exist at once while one layer computes T rows
// (common/model/transformer.cc). On entry the residual stream and its norm exist, 2 H per row.
//   attention  2 H + q k v, Q + 2 K; rotated q and k, Q + K; output of attention, Q; of o, H
//   MLP        4 H (the sum and its norm are added) + gate up, 2 I; SwiGLU, I; output of down, H
//   experts    4 H + logits and probabilities of the router, E and in float32 E; the sum of the
//              experts in float32, H; and, as if one expert had all rows, the MLP's 3 I' + H with
//              its input H, its gated output H and that in float32 H
//   grouped experts (CUDA in bfloat16, all experts at once): 4 H + router as above, and for T k
//              rows: 3 I', input, output, output in order and gated output, 4 H
// The token ids and positions in int64 and the rows of the rotary tables, 2 D, are added to the
// largest of these. On the CPU, float16 rows pass through float32, so the widest product's input
// and output are added.
int64_t ActivationBytes(const ModelConfig& config, int64_t num_rows, DataType dtype, bool on_cpu);

}  // namespace taopd
