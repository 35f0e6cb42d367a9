#include "common/memory/model_memory.h"

#include <algorithm>

#include "taopd/base/round_up.h"

namespace taopd {
namespace {

// Returns the bytes of a packed weight [outputs, inputs] for matrix products with [rows, inputs].
int64_t PackedBytesOf(int64_t outputs, int64_t inputs, DataType dtype) {
  const int64_t num_panels = CeilDiv(outputs, kPanelOutputs);
  const int64_t padded_outputs = num_panels * kPanelOutputs;
  if (PackedDtype(dtype) == DataType::kFloat32) {
    return padded_outputs * inputs * SizeOf(DataType::kFloat32);
  }
  // bfloat16 is packed in pairs of inputs, with 12 bits per number
  // (kernels/cpu/gemm/coded_panel.h).
  return padded_outputs * ((inputs + 1) / 2 * 2) * 3 / 2;
}

struct LayerSizes {
  const ModelConfig& config;
  int64_t H = config.hidden_size, I = config.intermediate_size, D = config.head_dim;
  int64_t Q = config.num_attention_heads * D, K = config.num_key_value_heads * D;
  int64_t E = config.moe.num_experts, k = config.moe.experts_per_token;
  int64_t expert_I = config.moe.intermediate_size;
};

int64_t NumSparseLayers(const ModelConfig& config) {
  int64_t num_sparse = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) num_sparse += config.IsSparse(i);
  return num_sparse;
}

// Returns the bytes per row while the experts of a sparse layer compute.
int64_t ExpertRowBytes(const LayerSizes& s, int64_t value_bytes, bool grouped) {
  constexpr int64_t kFloatBytes = 4;
  const int64_t before = 4 * s.H * value_bytes + s.E * (value_bytes + kFloatBytes);
  if (grouped) return before + s.k * (3 * s.expert_I + 4 * s.H) * value_bytes;
  return before + 2 * s.H * kFloatBytes + (3 * s.expert_I + 3 * s.H) * value_bytes;
}

}  // namespace

WeightCounts CountWeights(const ModelConfig& config) {
  const LayerSizes s{config};
  const int64_t num_sparse = NumSparseLayers(config);
  const int64_t num_dense = config.num_hidden_layers - num_sparse;
  WeightCounts counts;
  counts.embedding = config.vocab_size * s.H;
  counts.head = config.tie_word_embeddings ? 0 : counts.embedding;
  counts.projections = config.num_hidden_layers * (2 * s.H * s.Q + 2 * s.H * s.K) +
                       num_dense * 3 * s.H * s.I +
                       num_sparse * (s.E * s.H + s.E * 3 * s.H * s.expert_I);
  counts.vectors = config.NumParameters() - counts.embedding - counts.head - counts.projections;
  return counts;
}

DataType PackedDtype(DataType dtype) {
  return dtype == DataType::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
}

int64_t PackedProjectionBytes(const ModelConfig& config, DataType dtype) {
  const LayerSizes s{config};
  const int64_t attention =
      PackedBytesOf(s.Q + 2 * s.K, s.H, dtype) + PackedBytesOf(s.H, s.Q, dtype);
  const int64_t dense = PackedBytesOf(2 * s.I, s.H, dtype) + PackedBytesOf(s.H, s.I, dtype);
  const int64_t expert =
      PackedBytesOf(2 * s.expert_I, s.H, dtype) + PackedBytesOf(s.H, s.expert_I, dtype);
  const int64_t sparse = PackedBytesOf(s.E, s.H, dtype) + s.E * expert;
  const int64_t num_sparse = NumSparseLayers(config);
  return config.num_hidden_layers * attention + (config.num_hidden_layers - num_sparse) * dense +
         num_sparse * sparse;
}

int64_t PackedHeadBytes(const ModelConfig& config, DataType dtype) {
  return PackedBytesOf(config.vocab_size, config.hidden_size, dtype);
}

int64_t KvBlockBytes(const ModelConfig& config, DataType dtype, bool on_cpu) {
  if (!on_cpu) return kBlockTokens * config.KvBytesPerToken(SizeOf(dtype));
  return config.num_hidden_layers *
         BytesPerBlock(PackedDtype(dtype), config.num_key_value_heads, config.head_dim);
}

int64_t ActivationBytes(const ModelConfig& config, int64_t num_rows, DataType dtype, bool on_cpu) {
  constexpr int64_t kIdBytes = 8;
  const LayerSizes s{config};
  const int64_t b = SizeOf(dtype);
  const int64_t num_sparse = NumSparseLayers(config);
  int64_t row_bytes = (3 * s.H + 3 * s.Q + 3 * s.K) * b;
  if (num_sparse < config.num_hidden_layers) {
    row_bytes = std::max(row_bytes, (5 * s.H + 3 * s.I) * b);
  }
  if (num_sparse > 0) {
    const bool grouped = !on_cpu && dtype == DataType::kBFloat16;
    row_bytes = std::max(row_bytes, ExpertRowBytes(s, b, grouped));
  }
  row_bytes += 2 * kIdBytes + 2 * s.D * b;
  if (on_cpu && dtype == DataType::kFloat16) {
    int64_t widest = std::max(s.H + s.Q + 2 * s.K, s.Q + s.H);
    if (num_sparse < config.num_hidden_layers) widest = std::max(widest, s.H + 2 * s.I);
    if (num_sparse > 0) widest = std::max(widest, s.H + 2 * s.expert_I);
    row_bytes += widest * SizeOf(PackedDtype(dtype));
  }
  return num_rows * row_bytes;
}

}  // namespace taopd
