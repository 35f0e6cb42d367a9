// The model that learns: its weights, its tokenizer and its optimizer.
#pragma once

#include <memory>
#include <string>

#include "common/model/decoder.h"
#include "common/model/weights/tokenizer_files.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/optim/adamw.h"

namespace taopd {

struct Student {
  std::shared_ptr<Decoder> decoder;      // shared with the engine that generates rollouts
  std::unique_ptr<Tokenizer> tokenizer;  // null if the model directory has no tokenizer.json
  // The files that every checkpoint and the exported model get; empty without a tokenizer.
  TokenizerFiles tokenizer_files;
  // The directory that the tokenizer was read from; empty without one. Use it during set-up only:
  // a resumed run reads a checkpoint, which it deletes later.
  std::string tokenizer_dir;
  std::unique_ptr<AdamW> optimizer;  // null for evaluation and generation
};

// Returns RESOURCE_EXHAUSTED if the memory of the device cannot hold the weights together with the
// gradients, moments and copies that training keeps, or with optimizer.offload the host's memory
// the latter two. Returns INVALID_ARGUMENT for an offload from a CPU. Call it before any weights
// are read or allocated. `shard` is what this rank has of the optimizer. Activations, the KV cache
// and the logits come on top; settings bound those. `model` names the model in the message.
absl::Status CheckTrainingFits(const std::string& model, ModelConfig config,
                               const DecoderOptions& options, const OptimizerConfig& optimizer,
                               const AdamWOptions& shard = {});

// The error for optimizer.offload where the device is a CPU.
absl::Status OffloadFromCpu();

// Loads a student from a Hugging Face directory. With `optimizer` it can be trained; with null it
// is read-only. With `tokenizer_dir` the student goes on with the tokenizer there: its embedding
// grows if that tokenizer has more tokens, and its special tokens become that tokenizer's
// (student_tokenizer.h). `shard` is what this rank has of the optimizer.
absl::StatusOr<Student> LoadStudent(const std::string& model_dir, const std::string& dtype,
                                    const std::string& device, const OptimizerConfig* optimizer,
                                    const std::string& tokenizer_dir = "",
                                    const AdamWOptions& shard = {});

// Copies the weights of a Hugging Face directory into a model that has the same parameters. Returns
// DATA_LOSS if they differ in names or shapes; nothing changes then.
absl::Status ReloadWeights(const std::string& model_dir, Decoder* decoder);

// Writes the model and its tokenizer's files in Hugging Face layout. The directory is created.
absl::Status SaveStudentModel(const Student& student, const std::string& model_dir);

}  // namespace taopd
