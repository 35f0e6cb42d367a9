// A decoder-only transformer on LibTorch: packed variable-length batches, KV cache, autograd.
//
// Shapes: T tokens of all sequences of a batch together, B sequences, H hidden size, V vocabulary.
// Devices: all tensors of a model lie on device(). Threads: any number may run Forward under
// InferenceMode at once while nobody changes the parameters; training has one thread.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/config/model_config.h"
#include "common/model/layers/kv_cache.h"

namespace taopd {

// B sequences laid one after the other without padding. Sequence b holds tokens
// [cu_seqlens[b], cu_seqlens[b+1]) of the pack.
struct PackedBatch {
  at::Tensor token_ids_T;           // int64, on the model's device
  std::vector<int64_t> cu_seqlens;  // B + 1, starts with 0, ends with T
  // With a KV cache: the slot of each sequence, and how many of its tokens the cache already holds
  // (the new tokens' positions start there). Both empty without a cache.
  std::vector<int64_t> slots;
  std::vector<int64_t> past_lens;

  // Of whole sequences, without a cache.
  static PackedBatch FromSequences(const std::vector<std::vector<int32_t>>& sequences,
                                   at::Device device);
};

// The least multiple of 4 that is not below num_rows. On the CPU an fp32 matrix product's row
// depends on the number of rows when it is 1, 2 or 3, or when the threads' shares of the rows end
// in such a rest (MKL 2024.2: 1-3, 5-7, 9-11 rows with 2 and 8 threads, also 17-19 and 25-27 with
// 16); with a multiple of 4 it never did (M 1 to 300, K and N 96 to 3072, 1 to 16 threads). bf16
// rows never depend on it. Forward appends rows accordingly when grad mode is off; the head's
// product must do the same for its rows not to depend on what else is in the batch.
constexpr int64_t RowsForStableGemm(int64_t num_rows) { return (num_rows + 3) / 4 * 4; }

using NamedParameter = std::pair<std::string, at::Tensor>;

class Decoder {
 public:
  virtual ~Decoder() = default;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

  // Hidden states after the final norm, [T, H]. Attention is causal within a sequence; with a cache
  // the new keys and values are appended to it. Records gradients unless grad mode is off.
  virtual at::Tensor Forward(const PackedBatch& batch, KvCache* cache = nullptr) = 0;

  // [V, H]; the embedding itself when tied. Logits are hidden @ lm_head^T.
  virtual at::Tensor lm_head() const = 0;

  // Parameters under their Hugging Face names, in a fixed order; a tied head is not listed.
  virtual std::vector<NamedParameter> Parameters() const = 0;

 protected:
  Decoder(ModelConfig config, at::Device device, at::ScalarType dtype)
      : config_(std::move(config)), device_(device), dtype_(dtype) {}

 private:
  ModelConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
};

struct DecoderOptions {
  std::string dtype = "auto";   // "auto" (as stored), "float32", "bfloat16", "float16"
  std::string device = "auto";  // "auto" (cuda:0 where there is one), "cpu", "cuda", "cuda:1"
  // Training needs float32 or bfloat16: float16 gradients would need a scaled loss.
  bool requires_grad = false;
  std::optional<VocabularyChange> vocabulary =
      std::nullopt;  // of the tokenizer that the model goes on with
};

absl::StatusOr<at::Device> ParseDevice(const std::string& text);
absl::StatusOr<at::ScalarType> ParseDtype(const std::string& text, const std::string& stored_dtype);

// Loads config.json and the safetensors (one file or sharded) of a Hugging Face directory. Missing
// and unexpected tensors and wrong shapes are named; what older exports left beside the weights
// (rotary_emb.inv_freq, a copy of a tied head) is accepted. RESOURCE_EXHAUSTED, before anything is
// allocated, where the weights exceed the memory that is available. On the CPU, weights that are
// not trained and stored in the asked dtype stay in the mapped files; others are copied one by one.
absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& model_dir,
                                                     const DecoderOptions& options);

// Random weights as transformers initialises them (normal with initializer_range; norms one).
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const ModelConfig& config,
                                                     const DecoderOptions& options,
                                                     RandomStream random);

// Largest file of an export, as Hugging Face counts (decimal); one larger tensor has its own file.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

// Writes config.json and the weights in the model's dtype (model.safetensors, or where they exceed
// max_shard_bytes numbered shards and, last of all, their index). With the tokenizer's files
// (weights/tokenizer_files.h) transformers loads the result. The directory is created; each file is
// written atomically; weights of an earlier export are removed.
absl::Status SaveDecoder(const Decoder& decoder, const std::string& model_dir,
                         int64_t max_shard_bytes = kMaxShardBytes);

// SHA-256 (hex) over config and the weight tensors' names, shapes and bytes, in name order.
absl::StatusOr<std::string> WeightsRevision(const Decoder& decoder);

}  // namespace taopd
