// Makes decoders from Hugging Face directories or with random weights, writes them to directories,
// and identifies their weights. LoadDecoder is implemented in load.cc, MakeDecoder in init.cc,
// SaveDecoder in export.cc, and the revisions in revision.cc.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/model_config.h"
#include "common/model/decoder.h"
#include "common/model/parallel/collectives.h"

namespace taopd {

struct DecoderOptions {
  std::string dtype = "auto";   // "auto" (as stored), "float32", "bfloat16" or "float16"
  std::string device = "auto";  // "auto" (cuda:0 if there is one), "cpu", "cuda", "cuda:1", ...
  // Training needs float32 or bfloat16; float16 gradients would need a scaled loss.
  bool requires_grad = false;
  // If not null, the slice of the model that belongs to group->place() is loaded, for inference.
  // Every process of the group then makes the same calls of Infer, Logits and ScoreRows, and all of
  // them get the same hidden states; only rank 0 gets logits and scores. Must outlive the decoder.
  Collectives* group = nullptr;
  // Set if the model continues with another tokenizer.
  std::optional<VocabularyChange> vocabulary = std::nullopt;
  // Set if the model has adapters; with requires_grad, they are trained instead of the parameters.
  std::optional<LoraOptions> lora = std::nullopt;
  // The directory of an adapter that is merged into the weights while they are loaded, or empty.
  std::string merged_adapter_dir = "";
};

// Loads config.json and the safetensors (one file, or shards) of a Hugging Face directory.
//
// Errors name the directory or the file, and the tensor that is missing, unexpected or of the wrong
// shape. Tensors that older exports stored along with the weights (rotary_emb.inv_freq, a copy of a
// tied head) are accepted. Returns RESOURCE_EXHAUSTED, before anything is allocated, if the weights
// exceed the available memory.
//
// On the CPU, weights that are not trained and are stored in the requested dtype stay in the mapped
// files; others are copied one by one.
//
// If the directory holds an adapter (common/model/config/lora_config.h), the model is its base:
// with options.lora, the adapter is trained further; otherwise it is merged into the weights.
absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& model_dir,
                                                     const DecoderOptions& options);

// Makes a decoder with random weights, initialized as transformers does: normal with standard
// deviation initializer_range, norms 1, biases 0.
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const ModelConfig& config,
                                                     const DecoderOptions& options,
                                                     RandomStream random);

// The size limit of one file of an export, in decimal bytes as Hugging Face counts. A larger tensor
// gets its own file.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

// Writes the adapter of a decoder that has adapters (WriteLoraAdapter). Otherwise writes
// config.json and the weights in the model's dtype: model.safetensors, or, if they exceed
// max_shard_bytes, numbered shards and then their index. Together with the tokenizer's files
// (tokenizer_files.h), transformers can load the result. The directory is created, each file is
// written atomically, and the weights of an earlier export are removed.
absl::Status SaveDecoder(const Decoder& decoder, const std::string& model_dir,
                         int64_t max_shard_bytes = kMaxShardBytes);

// Returns a SHA-256 (hexadecimal) over the configuration and over the names, shapes and bytes of
// the weights, in the order of their names.
absl::StatusOr<std::string> WeightsRevision(const Decoder& decoder);
// Computes WeightsRevision on its own thread, since one digest over all bytes cannot be computed in
// parallel. The call takes references to the tensors, so the decoder may then drop them or be
// destroyed; their contents must not change. The future's destructor waits for the thread, and
// get() rethrows what LibTorch throws.
std::future<absl::StatusOr<std::string>> StartWeightsRevision(const Decoder& decoder);
// Computes WeightsRevision of the model that LoadDecoder would make of the directory on a CPU,
// without making it. `dtype` is one of config.json's names; `merged_adapter_dir` is that of
// DecoderOptions.
std::future<absl::StatusOr<std::string>> StartStoredRevision(const std::string& model_dir,
                                                             const std::string& dtype,
                                                             const std::string& merged_adapter_dir);

}  // namespace taopd
