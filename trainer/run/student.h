// The model that a run trains, with its tokenizer and optimizer, and how they go to and come from a
// checkpoint directory:
//
//   model/                 Hugging Face layout: config.json, model.safetensors, tokenizer files
//   optimizer.safetensors  moments, float32 master copies, update count
//   state.json             step, data position, sizes of the run's growing files
//   config.yaml            the effective configuration
//
// Random numbers have no state of their own: every stream is named by the seed and the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/model/decoder.h"
#include "common/model/weights/tokenizer_files.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/optim/adamw.h"

namespace taopd {

struct Student {
  std::shared_ptr<Decoder> decoder;
  std::unique_ptr<Tokenizer> tokenizer;  // null: the directory has no tokenizer.json
  // The files that every checkpoint and the exported model get; empty without a tokenizer.
  TokenizerFiles tokenizer_files;
  // Where the tokenizer was read from; empty: none. Only for set-up (the chat template): a resumed
  // run's is a checkpoint, which the run deletes later.
  std::string tokenizer_dir;
  std::unique_ptr<AdamW> optimizer;  // null for evaluation and generation
};

// RESOURCE_EXHAUSTED where the memory cannot hold the weights and what training keeps beside them;
// for before anything is read or made. What activations, the KV cache and the logits take comes on
// top; the configuration bounds those. `model` is the name in the message.
absl::Status CheckTrainingFits(const std::string& model, ModelConfig config,
                               const DecoderOptions& options);

// A trainable (or, with optimizer null, a read-only) student of a model directory. With
// tokenizer_dir it goes on with the tokenizer there: the embedding grows where that has more
// tokens, and the special tokens become that tokenizer's (student_tokenizer.h).
absl::StatusOr<Student> LoadStudent(const std::string& model_dir, const std::string& dtype,
                                    const std::string& device, const OptimizerConfig* optimizer,
                                    const std::string& tokenizer_dir = "");

// What a checkpoint knows beside the tensors.
struct TrainState {
  int64_t step = 0;   // steps finished
  int64_t epoch = 0;  // data position, see EpochOrder
  int64_t epoch_index = 0;
  int64_t metrics_bytes = 0;  // of metrics.jsonl; a resumed run cuts the file there
  int64_t samples_bytes = 0;  // of samples.jsonl
  int64_t nonfinite_in_a_row = 0;
  double train_seconds = 0;  // time spent in the steps so far
};

// Writes the model with its tokenizer in Hugging Face layout.
absl::Status SaveStudentModel(const Student& student, const std::string& model_dir);

absl::Status SaveCheckpointFiles(const Student& student, const TrainState& state,
                                 const std::string& config_yaml, const std::string& dir);
// Reads state.json and, into student's optimizer, optimizer.safetensors. The student itself is
// loaded from dir/model by LoadStudent before.
absl::StatusOr<TrainState> LoadCheckpointState(const std::string& dir, Student* student);

}  // namespace taopd
