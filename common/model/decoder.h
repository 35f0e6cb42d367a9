// A decoder-only transformer on LibTorch: packed variable-length batches, pages of keys and values,
// autograd.
//
// Shapes: T tokens of all sequences of a batch, B sequences, H hidden size, V vocabulary size.
// Devices: all tensors of a model are on device(). Threads: any number of threads may run Forward,
// Infer and Logits under InferenceMode at once, each Infer with its own pages, while no thread
// changes the parameters. Training uses one thread.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/model_config.h"
#include "common/model/config/recompute.h"
#include "common/model/layers/kv_pages.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/sampling/row_sampling.h"

namespace taopd {

// B whole sequences, one after the other, without padding. Sequence b is the tokens [cu_seqlens[b],
// cu_seqlens[b+1]) of the pack.
struct PackedBatch {
  at::Tensor token_ids_T;           // int64, on the model's device
  std::vector<int64_t> cu_seqlens;  // [B + 1], starts with 0, ends with T
  // Sequence b continues sequence parents[b] < b, which must not continue another. The positions of
  // b follow the parent's, and the rows of b see the parent's rows. The rows of a prompt that
  // several sequences share are therefore stored once. Sequence b continues none if parents[b] is
  // -1. If empty, no sequence continues another. Only for decoders that share prefixes
  // (Decoder::SharesPrefixes).
  std::vector<int64_t> parents;

  static PackedBatch FromSequences(const std::vector<std::vector<int32_t>>& sequences,
                                   at::Device device);
};

class DecodeInputs;  // common/model/layers/decode_inputs.h

// Rows that continue B sequences where their pages end. The sequences' rows follow one another and
// together are [0, T). Infer may call on_layer from any of the threads that compute them.
struct PagedBatch {
  at::Tensor token_ids_T;                // int64, on the model's device
  std::vector<PagedSequence> sequences;  // the block tables belong to the caller
  std::function<void()> on_layer;        // called once per layer, before its MLP; may be empty
  // If not null, this is a decode step whose rows, including token_ids_T, are stored there, and
  // `sequences` is empty. The work of Infer on the device then depends only on the values there, on
  // the pages and on the weights, so it can be recorded once and replayed with other values.
  const DecodeInputs* inputs = nullptr;
};

struct ForwardOptions {
  Recompute recompute = Recompute::kNone;
  // Called on the thread of the backward pass, with L = num_hidden_layers, L - 1, ..., 0. At call
  // i, the gradients of layer i and of the layers of earlier calls are complete in .grad. Layer L
  // stands for the final norm and an untied head. The embedding, and a head that is tied to it,
  // have no call: their gradient is complete when the backward pass returns. A layer also has no
  // call if nothing before it is trained. May be empty.
  std::function<void(int64_t layer)> on_layer_backward;
};

using NamedParameter = std::pair<std::string, at::Tensor>;

// A new tensor for a parameter: contiguous, of the model's dtype, on the CPU.
struct NewParameter {
  std::string name;
  at::Tensor tensor;
  std::function<void()> release;  // as ReleaserOf; may be null
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

  // Returns whether Forward takes batches with parents. A row then has the same bits as if the
  // parent's tokens were written before the sequence's own.
  virtual bool SharesPrefixes() const { return false; }

  // Returns the hidden states after the final norm, [T, H]. Attention is causal within each
  // sequence. Records gradients unless grad mode is off; `options` then applies to the backward
  // pass, and the decoder must outlive it.
  virtual at::Tensor Forward(const PackedBatch& batch, const ForwardOptions& options) = 0;
  at::Tensor Forward(const PackedBatch& batch) { return Forward(batch, ForwardOptions()); }

  // Forward for inference: writes the rows' keys and values to their sequences' pages and attends
  // to everything that the pages hold. On the CPU, a row's bits depend only on its sequence's
  // tokens up to the row, not on other sequences, on the sequence's chunks and blocks, or on the
  // number of threads. REQUIRES: InferenceMode, and no thread changes the parameters.
  virtual at::Tensor Infer(const PagedBatch& batch, KvPages* pages) = 0;
  // Returns the logits of hidden states, float32 [N, V] on the model's device, under the contract
  // of Infer.
  virtual at::Tensor Logits(const at::Tensor& hidden_NH) = 0;
  // Returns what ScoreRowsOfHead (kernels/torch/head/scoring_head.h) returns for this model's head,
  // under the contract of Infer.
  virtual ScoringOutput ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                                  const at::Tensor& candidate_ids_NM,
                                  const ScoringOptions& options);
  // Returns the sampler that draws tokens from Logits on their device; undefined if the host does.
  virtual RowSampler row_sampler(at::Device device_of_logits) const {
    return RowSamplerOn(device_of_logits);
  }
  // Calls KvPages::CopyBlock in every process that has pages of the model.
  virtual void CopyBlock(KvPages* pages, int32_t from, int32_t to) { pages->CopyBlock(from, to); }
  // Returns the configuration for the KvPages of Infer: the model's, or that of the slice that this
  // process holds.
  virtual const ModelConfig& paged_config() const { return config_; }
  // Returns an error if the model cannot compute any more for a reason other than its own device.
  virtual absl::Status Health() const { return absl::OkStatus(); }
  // Prepares what the first Infer and the first Logits or ScoreRows would otherwise prepare.
  // Returns the bytes that this process needs beyond the memory plan. The plan expects 12 bits per
  // number of a packed copy; some bfloat16 matrices have numbers that are spread too widely for
  // that.
  virtual int64_t PrepareInference() = 0;
  // Frees what inference no longer needs once it is prepared: on the CPU, the parameters that have
  // packed copies. After this call, Forward, lm_head and Parameters must not be called, and the
  // weights must not change.
  virtual void KeepForInferenceOnly() = 0;
  // Replaces the parameters of the same names by these tensors, to which it keeps references. Packs
  // the matrices that change again, in place. weight_version() grows.
  // REQUIRES: the parameters are not trained, have no adapters and are the whole model's; the names
  // are those of Parameters(); KeepForInferenceOnly was not called; no other thread uses the
  // decoder.
  virtual void ReplaceParameters(const std::vector<NewParameter>& /*changed*/) {
    TORCH_CHECK(false, "this decoder's parameters cannot be replaced");
  }
  // For a parameter in a mapped file, returns a function that tells the system that the pages are
  // not needed for now; otherwise returns null. Any thread may call the function, and it may
  // outlive the decoder.
  virtual std::function<void()> ReleaserOf(const at::Tensor& parameter) const { return nullptr; }
  // Returns the addresses of the tensors that Infer reads besides its arguments. While they stay
  // the same, a record of Infer (PagedBatch::inputs) can be replayed; it sees values that are
  // written in place.
  virtual std::vector<const void*> InferenceAddresses() const { return {}; }
  // Grows whenever a parameter is written. Keys and values of another version must not be used.
  virtual uint64_t weight_version() const = 0;

  // Returns the head, [V, H], which is the embedding itself if it is tied. Logits are hidden @
  // lm_head^T.
  virtual at::Tensor lm_head() const = 0;

  // Returns the parameters by their Hugging Face names, in a fixed order. A tied head is not
  // listed. With adapters, they are those of the base.
  virtual std::vector<NamedParameter> Parameters() const = 0;

  // Returns the configuration of the adapters with which the model is trained, or null. With
  // adapters, the base is frozen, except for modules_to_save. On the CPU, all products are those of
  // the merged weights (kernels/torch/gemm/lora/low_rank.h).
  virtual const LoraConfig* lora() const { return nullptr; }
  // Returns the parameters that training changes: the adapters' matrices and modules_to_save by
  // PEFT's names, or Parameters().
  virtual std::vector<NamedParameter> TrainedParameters() const { return Parameters(); }
  // Returns a decoder that shares the tensors of the frozen base, but no packed weights, and has
  // copies of the present values of TrainedParameters, which it does not train. Returns null
  // without adapters.
  virtual std::unique_ptr<Decoder> WithOwnAdapters() const { return nullptr; }

 protected:
  Decoder(ModelConfig config, at::Device device, at::ScalarType dtype)
      : config_(std::move(config)), device_(device), dtype_(dtype) {}

 private:
  ModelConfig config_;
  at::Device device_;
  at::ScalarType dtype_;
};

// Parses DecoderOptions::device (weights/model_files.h). Returns INVALID_ARGUMENT for unknown
// names, and FAILED_PRECONDITION for devices that do not exist or cannot be used
// (cuda_requirements.h).
absl::StatusOr<at::Device> ParseDevice(const std::string& text);

}  // namespace taopd
