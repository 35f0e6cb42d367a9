// A decoder-only transformer on LibTorch: packed variable-length batches, pages of keys and values,
// autograd.
//
// Shapes: T tokens of all sequences of a batch, B sequences, H hidden size, V vocabulary size.
// Devices: all tensors of a model are on device(). Threads: any number of threads may run Forward,
// Infer and Logits under InferenceMode at once, each Infer with pages of its own, while no thread
// changes the parameters. Training uses one thread.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/model/config/model_config.h"
#include "common/model/config/recompute.h"
#include "common/model/layers/kv_pages.h"
#include "common/model/parallel/collectives.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/sampling/row_sampling.h"

namespace taopd {

// B whole sequences, one after the other, without padding. Sequence b is the tokens
// [cu_seqlens[b], cu_seqlens[b+1]) of the pack.
struct PackedBatch {
  at::Tensor token_ids_T;           // int64, on the model's device
  std::vector<int64_t> cu_seqlens;  // [B + 1], starts with 0, ends with T
  // Sequence b continues sequence parents[b] < b, which continues none: its positions follow those
  // of the parent, and its rows see the parent's. So the rows of a prompt that several sequences
  // share are there once. -1: it continues none. Empty: no sequence does. Only for decoders that
  // share prefixes (Decoder::SharesPrefixes).
  std::vector<int64_t> parents;

  static PackedBatch FromSequences(const std::vector<std::vector<int32_t>>& sequences,
                                   at::Device device);
};

class DecodeInputs;  // common/model/layers/decode_inputs.h

// Rows of B sequences that go on where their pages end. The sequences' rows follow one another and
// together are [0, T).
struct PagedBatch {
  at::Tensor token_ids_T;                // int64, on the model's device
  std::vector<PagedSequence> sequences;  // the block tables belong to the caller
  std::function<void()> after_layer;     // called when a layer has been computed; may be empty
  // Not null: a decode step whose rows are there, token_ids_T among them; `sequences` is empty. What
  // Infer then does on the device depends on the values there, on the pages and on the weights, and
  // on nothing else, so that it can be recorded once and replayed with other values.
  const DecodeInputs* inputs = nullptr;
};

struct ForwardOptions {
  Recompute recompute = Recompute::kNone;
  // Called in the backward pass, by its thread, with L = num_hidden_layers, L - 1, ..., 0. At call
  // i the gradients of all parameters of layer i, and of those called before, are in their .grad:
  // layer L stands for the final norm and a head of its own. The embedding, with a tied head, has
  // no call: its gradient is complete when the backward pass returns. Nor has a layer a call if
  // nothing before it is trained. May be empty.
  std::function<void(int64_t layer)> on_layer_backward;
};

using NamedParameter = std::pair<std::string, at::Tensor>;

class Decoder {
 public:
  virtual ~Decoder() = default;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

  // Whether Forward takes batches with parents. A row is then the same as if the parent's tokens
  // were written before the sequence's own, bit for bit.
  virtual bool SharesPrefixes() const { return false; }

  // The hidden states after the final norm, [T, H]. Attention is causal within each sequence.
  // Records gradients unless grad mode is off; the options are for the backward pass then. The
  // decoder must outlive it.
  virtual at::Tensor Forward(const PackedBatch& batch, const ForwardOptions& options) = 0;
  at::Tensor Forward(const PackedBatch& batch) { return Forward(batch, ForwardOptions()); }

  // The same for inference: writes the rows' keys and values to their sequences' pages and attends
  // to all that the pages hold. On the CPU, a row depends on its sequence's tokens up to it and on
  // nothing else, bit for bit: not on the other sequences, the chunks in which the sequence came,
  // its blocks, or the number of threads. REQUIRES: InferenceMode, and no thread changes the
  // parameters.
  virtual at::Tensor Infer(const PagedBatch& batch, KvPages* pages) = 0;
  // The logits of hidden states, float32 [N, V] on the model's device, under the contract of Infer.
  virtual at::Tensor Logits(const at::Tensor& hidden_NH) = 0;
  // ScoreRowsOfHead (kernels/torch/head/scoring_head.h) with this model's head, under the contract
  // of Infer.
  virtual ScoringOutput ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                                  const at::Tensor& candidate_ids_NM,
                                  const ScoringOptions& options);
  // What draws tokens from Logits on their device; undefined if the host does.
  virtual RowSampler row_sampler(at::Device device_of_logits) const {
    return RowSamplerOn(device_of_logits);
  }
  // KvPages::CopyBlock, wherever the model's pages are.
  virtual void CopyBlock(KvPages* pages, int32_t from, int32_t to) { pages->CopyBlock(from, to); }
  // What KvPages for Infer are made from: the model, or the slice of it that this process holds.
  virtual const ModelConfig& paged_config() const { return config_; }
  // An error if the model cannot compute any more, for another reason than its own device.
  virtual absl::Status Health() const { return absl::OkStatus(); }
  // Computes now what the first Infer and the first Logits or ScoreRows would prepare. Returns the
  // bytes that it takes in this process beyond the memory plan's: bfloat16 matrices whose numbers are
  // spread too wide for the 12 bits that a packed copy has planned for each.
  virtual int64_t PrepareInference() = 0;
  // Frees what inference does not read once it is prepared: on the CPU, the parameters that it has
  // packed copies of. Forward, lm_head and Parameters may not be called any more, and the weights
  // not change.
  virtual void KeepForInferenceOnly() = 0;
  // For a parameter that lies in a mapped file, a function that tells the system that its pages are
  // not needed for now; else null. It may be called by any thread, and outlive the decoder.
  virtual std::function<void()> ReleaserOf(const at::Tensor& parameter) const { return nullptr; }
  // Where the tensors lie that Infer reads beside its arguments. While this stays the same, a record
  // of Infer (PagedBatch::inputs) can be replayed; values that are written in place are seen.
  virtual std::vector<const void*> InferenceAddresses() const { return {}; }
  // Grows whenever a parameter is written. Keys and values of another version are of no use.
  virtual uint64_t weight_version() const = 0;

  // [V, H]; the embedding itself if the head is tied. Logits are hidden @ lm_head^T.
  virtual at::Tensor lm_head() const = 0;

  // The parameters by their Hugging Face names, in a fixed order. A tied head is not listed.
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
  std::string dtype = "auto";   // "auto" (as stored), "float32", "bfloat16" or "float16"
  std::string device = "auto";  // "auto" (cuda:0 if there is one), "cpu", "cuda", "cuda:1", ...
  // Training needs float32 or bfloat16; float16 gradients would need a scaled loss.
  bool requires_grad = false;
  // Not null: loads the slice of the model that belongs to group->place(), for inference. Every
  // process of the group then makes the same calls of Infer, Logits and ScoreRows, and all get the
  // same hidden states; logits and scores come out at rank 0. Must outlive the decoder.
  Collectives* group = nullptr;
  // Set if the model continues with another tokenizer.
  std::optional<VocabularyChange> vocabulary = std::nullopt;
};

// Parse the members of DecoderOptions. `stored_dtype` is what "auto" stands for. Return
// INVALID_ARGUMENT for unknown names and for devices that do not exist.
absl::StatusOr<at::Device> ParseDevice(const std::string& text);
absl::StatusOr<at::ScalarType> ParseDtype(const std::string& text, const std::string& stored_dtype);

// Loads config.json and the safetensors (one file, or shards) of a Hugging Face directory.
//
// Errors name the directory or the file, and the missing or unexpected tensor or the wrong shape.
// Tensors that older exports left beside the weights (rotary_emb.inv_freq, a copy of a tied head)
// are accepted. Returns RESOURCE_EXHAUSTED, before anything is allocated, if the weights exceed the
// available memory.
//
// On the CPU, weights that are not trained and that are stored in the requested dtype stay in the
// mapped files; others are copied one by one.
absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& model_dir,
                                                     const DecoderOptions& options);

// Makes a decoder with random weights, initialised as transformers does: normal with standard
// deviation initializer_range, norms 1, biases 0.
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const ModelConfig& config,
                                                     const DecoderOptions& options,
                                                     RandomStream random);

// The size limit of one file of an export, in decimal bytes as Hugging Face counts. A tensor that
// is larger gets a file of its own.
inline constexpr int64_t kMaxShardBytes = 5'000'000'000;

// Writes config.json and the weights in the model's dtype: model.safetensors, or, if they exceed
// max_shard_bytes, numbered shards and then their index. Together with the tokenizer's files
// (weights/tokenizer_files.h), transformers can load the result. The directory is created, each
// file is written atomically, and the weights of an earlier export are removed.
absl::Status SaveDecoder(const Decoder& decoder, const std::string& model_dir,
                         int64_t max_shard_bytes = kMaxShardBytes);

// SHA-256 (hexadecimal) over the configuration and over the names, shapes and bytes of the weights,
// in the order of their names.
absl::StatusOr<std::string> WeightsRevision(const Decoder& decoder);
// The same on a thread of its own, since one digest over all bytes cannot be computed in parallel.
// Refers to the tensors when it is called, so the decoder may meanwhile drop them or be destroyed;
// their contents must not change. The future's destructor waits for the thread, and get() rethrows
// what LibTorch throws.
std::future<absl::StatusOr<std::string>> StartWeightsRevision(const Decoder& decoder);
// WeightsRevision of the model that LoadDecoder would make of the directory on a CPU, without
// making it. `dtype` is one of config.json's names.
std::future<absl::StatusOr<std::string>> StartStoredRevision(const std::string& model_dir,
                                                             const std::string& dtype);

}  // namespace taopd
