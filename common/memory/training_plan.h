// The memory plan of a process that trains a model and generates with its live weights: the lines
// of an inference engine (engine_plan.h), of which the weights are parameters, and those of the
// optimizer and of the forward and backward passes.
//
// Nothing here knows LibTorch; the functions are pure.
//
// Letters are those of model_memory.h; P parameters, T tokens of the largest micro-batch, R response
// rows of it, b bytes of a value.
#pragma once

#include <cstdint>
#include <string>

#include "common/memory/engine_plan.h"
#include "common/model/config/recompute.h"

namespace taopd {

struct TrainingPlanInput {
  // weights_are_parameters is set by PlanTraining, and the training lines are added to other_lines.
  // kv_cache_bytes is a limit: the pool is not larger than max_num_seqs sequences of max_model_len.
  EnginePlanInput engine;
  int64_t micro_batch_tokens = 0;  // T
  int64_t micro_batch_rows = 0;    // R
  Recompute recompute = Recompute::kNone;
  bool bfloat16_moments = false;
  bool float32_master = true;  // of bfloat16 weights
  // Above 0: master weights and moments lie on the host, which updates so many elements at a time.
  int64_t offload_elements = 0;
  // The processes among which the optimizer's state is cut, and with shard_gradients the sums of
  // gradients. Everything else is that of one process.
  int64_t num_ranks = 1;
  bool shard_gradients = false;
  // Elements of a bucket in which ranks exchange gradients, and how many are on their way at most.
  int64_t bucket_elements = 0;
  int64_t buckets_in_flight = 0;
  // Whether the first mini-batch of a step is trained on while the others are still generated. If
  // not, what only the rollouts need is free again when training begins.
  bool overlaps = true;
  bool copies_checkpoints = false;   // trainer.async_save is on
  int64_t head_workspace_bytes = 0;  // of the loss
  int64_t support_size = 0;          // k
  // Response tokens of a whole step, whose rollouts and scores wait for their mini-batch.
  int64_t step_rows = 0;
};

// What the layers keep of T tokens for the backward pass, in bytes. Without recomputation a layer
// keeps for each token, in values:
//   norms      4 H: both sums of the residual stream and both norms
//   attention  3 Q + 2 K: rotated queries and keys, values, and the output in the order of the
//              sequences and in that of the rows; with norms of queries and keys Q + K more
//   MLP        3 I: gate, up and their product
// and, by the CPU's fused functions (is_fused: float32 and bfloat16 there), less:
//   attention  2 Q + 2 K: the projections' outputs and the result
//   MLP        2 I: gate and up
// Both:
//   experts    E + k (3 I' + 2 H): the router's probabilities and the rows of k experts
// and float32 numbers of the norms and of attention, two and up to three for each head. With
// attention computed again only the norms and the MLP or the experts remain, with full
// recomputation H.
int64_t SavedActivationBytes(const ModelConfig& config, int64_t num_tokens, WeightDtype dtype,
                             Recompute recompute, bool is_fused);

// The lines that training adds to the engine's:
//   master weights          4 P, if the weights are not float32 and have a master; of one rank, its
//                           share; with offload_elements on the host
//   optimizer moments       8 P, or 4 P in bfloat16; of one rank, its share; on the host likewise
//   offload buffers         on the host: two of gradients and weights
//   checkpoint copy         of weights, master weights and moments, with copies_checkpoints
//   gradients               4 P: one sum in float32; of one rank, its share if they are sharded
//   gradient buckets        of several ranks: what is on its way between them, and of sharded
//                           gradients what a backward pass is at work on: the embedding, which a
//                           tied head adds to first, and three layers
//   training activations    SavedActivationBytes of T tokens
//   backward buffers        gradients of one layer's values, what is computed again of it, and the
//                           head's gradient
//   loss head               hidden states of the R rows and their gradient, the head's gradient in
//                           float32 and in its type, and the workspace. The head is done when the
//                           layers' backward pass begins: only the larger one of these two lines
//                           counts, the other is a limit
//   scored rollouts         on the host: ids and log-probs of the step's rows
std::vector<MemoryLine> TrainingLines(const TrainingPlanInput& input);

// What the KV pool of an engine takes: with max_num_seqs sequences of max_model_len, and with one.
int64_t NeededPoolBytes(const EnginePlanInput& engine);
int64_t PoolBytesOfOneSequence(const EnginePlanInput& engine);

// The whole plan: the engine's lines and those of training. Where the two do not overlap, the
// forward and backward passes' lines are limits, and one line holds what they need beyond the
// engine's activations, head workspace and KV pool. Errors are those of PlanEngine, but a plan that
// does not fit names the trainer's setting that makes the largest line smaller. `refused` as there.
absl::StatusOr<EnginePlan> PlanTraining(TrainingPlanInput input, EnginePlan* refused = nullptr);

}  // namespace taopd
