// The model that is trained: its weights, its tokenizer and its optimizer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/model/config/model_config.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/tokenizer_files.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/optim/adamw.h"

namespace taopd {

struct Student {
  std::shared_ptr<Decoder> decoder;      // shared with the engine that generates rollouts
  std::unique_ptr<Tokenizer> tokenizer;  // null if the model directory has no tokenizer.json
  // The files that are copied to every checkpoint and to the exported model; empty without a
  // tokenizer.
  TokenizerFiles tokenizer_files;
  // The directory from which the tokenizer was read; empty without one. Use it only during set-up:
  // a resumed run reads it from a checkpoint, which it deletes later.
  std::string tokenizer_dir;
  std::unique_ptr<AdamW> optimizer;  // null for evaluation and generation
  std::string base_revision;         // of the base of adapters that are trained; otherwise empty
};

// Returns RESOURCE_EXHAUSTED if the device's memory cannot hold the weights, gradients, moments and
// master copies of training; with optimizer.offload the host's memory must hold the moments and
// copies. Returns INVALID_ARGUMENT for an offload from a CPU. Call it before any weights are read
// or allocated. With options.lora, only the adapters and their saved modules are trained. `shard`
// describes this rank's part of the optimizer. Activations, the KV cache and the logits need
// further memory, which settings bound. `model` names the model in the message.
absl::Status CheckTrainingFits(const std::string& model, ModelConfig config,
                               const DecoderOptions& options, const OptimizerConfig& optimizer,
                               const AdamWOptions& shard = {});

// Returns the error for optimizer.offload on a CPU.
absl::Status OffloadOnCpuError();

// Loads a student from a Hugging Face directory. The student is read-only if `optimizer` is null.
// If `tokenizer_dir` is not empty, the student takes over the tokenizer there: its embedding grows
// if that tokenizer has more tokens, and its special tokens become that tokenizer's
// (ReadVocabularyChange). `shard` describes this rank's part of the optimizer.
//
// With `lora` and an optimizer, adapters are trained instead of the weights. `model_dir` may then
// be the directory of an adapter, such as that of a checkpoint, which is trained further; returns
// INVALID_ARGUMENT if its configuration is not that of `lora`. Its base is then the base of the
// model in lora->config.base_model or, if that is empty, the one that the adapter names. Without
// `lora`, an adapter in `model_dir` is merged into the weights of its base.
absl::StatusOr<Student> LoadStudent(const std::string& model_dir, const std::string& dtype,
                                    const std::string& device, const OptimizerConfig* optimizer,
                                    const std::string& tokenizer_dir = "",
                                    const AdamWOptions& shard = {},
                                    const std::optional<LoraOptions>& lora = std::nullopt);

// Copies the weights of a Hugging Face directory, or of an adapter's directory, into a model with
// the same parameters or adapters. Returns DATA_LOSS, and changes nothing, if they differ in names
// or shapes.
absl::Status ReloadWeights(const std::string& model_dir, Decoder* decoder);

// Creates the directory and writes the model, or its adapter alone, and its tokenizer's files in
// Hugging Face layout.
absl::Status SaveStudentModel(const Student& student, const std::string& model_dir);

// Returns the tokenizer's size and its special tokens: bos_token, pad_token and eos_token of
// tokenizer_config.json. An eos_token_id in a generation_config.json next to it takes precedence
// over eos_token, because chat models end on several tokens. verl sets the same three in the
// model's configuration. Returns INVALID_ARGUMENT for a token that the tokenizer does not have, and
// if no token ends a response.
absl::StatusOr<VocabularyChange> ReadVocabularyChange(const std::string& tokenizer_dir,
                                                      const Tokenizer& tokenizer);

}  // namespace taopd
