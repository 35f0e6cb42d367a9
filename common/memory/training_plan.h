// The memory plan of a process that trains a model and generates with its live weights. It consists
// of the lines of an inference engine (engine_plan.h) whose weights are parameters, of the
// optimizer, and of the forward and backward passes.
//
// This header does not depend on LibTorch. The functions are pure.
//
// The letters are those of model_memory.h; P parameters, T tokens of the largest micro-batch and R
// response rows of it, b bytes of a value.
#pragma once

#include <cstdint>

#include "common/memory/engine_plan.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/recompute.h"

namespace taopd {

struct TrainingPlanInput {
  // PlanTraining sets weights_are_parameters and adds the training lines to other_lines.
  // kv_cache_bytes is a limit: the pool is not larger than max_num_seqs sequences of max_model_len.
  EnginePlanInput engine;
  int64_t micro_batch_tokens = 0;  // T
  int64_t micro_batch_rows = 0;    // R
  Recompute recompute = Recompute::kNone;
  bool bfloat16_moments = false;
  bool float32_master = true;  // for bfloat16 weights
  bool keeps_average = false;  // a float32 average of the weights is the student's teacher
  // If on, training updates the adapters and their modules_to_save, not the other weights.
  LoraCounts lora;
  // Above 0: master weights and moments are on the host, which updates this many elements at a
  // time.
  int64_t offload_elements = 0;
  // The number of processes that divide the optimizer's state and, with shard_gradients, the sums
  // of gradients among themselves. All other numbers are those of one process.
  int64_t num_ranks = 1;
  bool shard_gradients = false;
  // The elements of a bucket in which ranks exchange gradients, and the largest number in flight.
  int64_t bucket_elements = 0;
  int64_t buckets_in_flight = 0;
  // Whether training on the first mini-batch of a step starts while the others are still generated.
  // If not, the memory that only the rollouts need is free again when training begins.
  bool overlaps = true;
  bool copies_checkpoints = false;  // trainer.async_save is on
  // Whether rollouts are generated from a copy of earlier weights: trainer.async_steps is above 0.
  bool copies_rollout_weights = false;
  int64_t head_workspace_bytes = 0;  // workspace of the loss
  int64_t support_size = 0;          // k
  // The response tokens of all steps whose rollouts and scores wait for their mini-batch.
  int64_t step_rows = 0;
};

// Returns the bytes that the layers keep of T tokens for the backward pass. Without recomputation,
// a layer keeps for each token, in values:
//   norms      4 H: both sums of the residual stream and both norms
//   attention  3 Q + 2 K: rotated queries and keys, values, and the output in the order of the
//              sequences and in that of the rows; with norms of queries and keys Q + K more
//   MLP        3 I: gate, up and their product
// With the CPU's fused functions (is_fused, for float32 and bfloat16), it keeps less:
//   attention  2 Q + 2 K: the projections' outputs and the result
//   MLP        2 I: gate and up
// In both cases it keeps:
//   experts    E + k (3 I' + 2 H): the router's probabilities and the rows of k experts
// and float32 numbers: two for the norms, and up to three per head for attention. If attention is
// computed again, only the norms and the MLP or the experts remain; with full recomputation, only H
// remains.
int64_t SavedActivationBytes(const ModelConfig& config, int64_t num_tokens, DataType dtype,
                             Recompute recompute, bool is_fused);

// Returns the lines that training adds to the engine's. P values are trained: those of the model,
// or A values of adapters in float32 and S values that are saved with them in the model's type.
//   adapters                4 A, if adapters are trained
//   master weights          4 P, or 4 S, if the weights are not float32 and have a master copy;
//                           each rank holds its part; on the host with offload_elements
//   optimizer moments       8 P, or 4 P in bfloat16; divided and placed like the master weights
//   teacher average         4 P with keeps_average; divided and placed like the master weights
//   offload buffers         two buffers of gradients and weights, on the host
//   checkpoint copy         weights, master weights, moments and average, with copies_checkpoints
//   gradients               4 P: one sum in float32; each rank holds its part if they are sharded
//   gradient buckets        with several ranks: the gradients in flight between them, and, if they
//                           are sharded, those that a backward pass is computing: the embedding's,
//                           one bucket and three layers
//   training activations    SavedActivationBytes of T tokens
//   backward buffers        gradients of one layer's values, the part of it that is computed again,
//                           and the embedding's gradient unless it is added in place; with adapters
//                           and the fused functions, a copy of the gradients of gate and up
//   loss head               hidden states of the R rows and their gradient, and the workspace. The
//                           head is done when the layers' backward pass begins: only the larger of
//                           these two lines counts, and the other is a limit
//   rollout weights         the weights or adapters of an earlier step, with copies_rollout_weights
//   scored rollouts         ids and log-probs of the step's rows, on the host
std::vector<MemoryLine> TrainingLines(const TrainingPlanInput& input);

// Returns the bytes of an engine's KV pool: with max_num_seqs sequences of max_model_len, and with
// one.
int64_t NeededPoolBytes(const EnginePlanInput& engine);
int64_t PoolBytesOfOneSequence(const EnginePlanInput& engine);

// Returns the whole plan: the engine's lines and those of training. If the two do not overlap, the
// lines of the forward and backward passes are limits, and one line holds what they need in
// addition to the engine's activations, head workspace and KV pool. Returns the errors of
// PlanEngine, but the error of a plan that does not fit names the trainer's setting that makes the
// largest line smaller. PlanEngine explains `refused`.
absl::StatusOr<EnginePlan> PlanTraining(TrainingPlanInput input, EnginePlan* refused = nullptr);

}  // namespace taopd
