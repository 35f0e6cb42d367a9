#include "common/memory/training_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/memory.h"
#include "taopd/base/round_up.h"
#include "taopd/head/logit_chunk.h"

namespace taopd {
namespace {

constexpr int64_t kFloatBytes = 4;

bool IsPass(MemoryItem item) {
  using enum MemoryItem;
  return item == kTrainingActivations || item == kBackwardBuffers || item == kLossHead;
}

// The memory that the trainer's process holds in addition to all other lines: 15 to 45 MiB of a
// total of some 430. This is the low end, because blocks of larger models are returned when they
// are freed.
constexpr int64_t kHeapBytes = int64_t{16} << 20;

// The approximate number of tensors that a step of the engine holds at once.
constexpr int64_t kActivationTensors = 4;

// Returns whether a line's memory returns to the system when it is freed. The C library keeps
// smaller blocks in its heap (common/base/memory.h), in pieces that other tensors seldom fit.
bool IsGivenBack(const MemoryLine& line, const EnginePlanInput& engine, Recompute recompute) {
  using enum MemoryItem;
  int64_t num_tensors = 0;
  if (line.item == kHeadWorkspace) num_tensors = 1;
  if (line.item == kActivations) num_tensors = kActivationTensors;
  if (line.item == kKvPool) num_tensors = engine.config.num_hidden_layers;
  if (line.item == kCudaGraphs) num_tensors = 1;
  if (num_tensors == 0 || line.device != engine.budget.device) return false;
  return !engine.budget.on_cpu() ||
         line.bytes / num_tensors >=
             (recompute == Recompute::kNone ? kMappedBlockBytes : kReturnedBlockBytes);
}

// Returns what the engine needs while it generates and returns to the system afterwards.
int64_t RolloutBytes(EnginePlanInput engine, Recompute recompute) {
  engine.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<EnginePlan> plan = PlanEngine(engine);
  int64_t bytes = 0;
  for (const MemoryLine& line : plan.ok() ? plan->lines : std::vector<MemoryLine>()) {
    if (IsGivenBack(line, engine, recompute)) bytes += line.bytes;
  }
  return bytes;
}

int64_t HeadBytes(const TrainingPlanInput& input) {
  const ModelConfig& config = input.engine.config;
  const int64_t b = SizeOf(input.engine.dtype);
  const int64_t states_bytes = 2 * input.micro_batch_rows * config.hidden_size * b;
  if (!input.engine.budget.on_cpu()) {
    const auto chunk_bytes = [&](int64_t num_rows) {
      return StudentHeadBytesOnGpu(num_rows, config.hidden_size, config.vocab_size, b);
    };
    const int64_t least = chunk_bytes(std::min(input.micro_batch_rows, kMinStudentRows));
    return states_bytes + std::min(std::max(input.head_workspace_bytes, least),
                                   chunk_bytes(input.micro_batch_rows));
  }
  const int64_t row_bytes = config.vocab_size * b;
  const int64_t rows_that_fit = std::max<int64_t>(1, input.head_workspace_bytes / row_bytes);
  return states_bytes + std::min(input.micro_batch_rows, rows_that_fit) * row_bytes;
}

// The values of one token: numbers of the model's type, and float32 numbers.
struct TokenValues {
  int64_t values = 0;
  int64_t floats = 0;
  int64_t Bytes(int64_t value_bytes) const { return values * value_bytes + floats * kFloatBytes; }
};

// Returns whether the layers use the fused functions of the CPU (self_attention.h and gated_mlp.h
// in kernels/torch), whose backward pass computes cheap intermediate results again.
bool IsFused(const EnginePlanInput& engine) {
  return engine.budget.on_cpu() && engine.dtype != DataType::kFloat16;
}

TokenValues AttentionValues(const ModelConfig& config, bool is_fused) {
  const int64_t Q = config.num_attention_heads * config.head_dim;
  const int64_t K = config.num_key_value_heads * config.head_dim;
  if (is_fused) return {2 * Q + 2 * K, config.num_attention_heads};
  TokenValues kept = {3 * Q + 2 * K, config.num_attention_heads};
  if (config.qk_norm) {
    kept.values += Q + K;
    kept.floats += config.num_attention_heads + config.num_key_value_heads;
  }
  return kept;
}

TokenValues MlpValues(const ModelConfig& config, int64_t layer, bool is_fused) {
  if (!config.IsSparse(layer)) return {(is_fused ? 2 : 3) * config.intermediate_size, 0};
  return {config.moe.num_experts + config.moe.experts_per_token *
                                       (3 * config.moe.intermediate_size + 2 * config.hidden_size),
          0};
}

// Returns the bytes per token of a layer.
int64_t LayerBytes(const ModelConfig& config, int64_t layer, int64_t value_bytes,
                   Recompute recompute, bool is_fused) {
  const int64_t H = config.hidden_size;
  if (recompute == Recompute::kFull) return H * value_bytes;
  const int64_t norms_and_mlp = TokenValues{4 * H, 2}.Bytes(value_bytes) +
                                MlpValues(config, layer, is_fused).Bytes(value_bytes);
  if (recompute == Recompute::kAttention) return norms_and_mlp;
  return norms_and_mlp + AttentionValues(config, is_fused).Bytes(value_bytes);
}

// Returns the largest bytes per token over all layers, in addition to what is kept.
int64_t BackwardBytes(const ModelConfig& config, int64_t value_bytes, Recompute recompute,
                      bool is_fused) {
  const int64_t H = config.hidden_size;
  const int64_t Q = config.num_attention_heads * config.head_dim;
  const int64_t K = config.num_key_value_heads * config.head_dim;
  int64_t largest = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    // The gradients of gate and up, and with the fused functions also that of their product.
    const int64_t mlp_values = MlpValues(config, i, is_fused).values;
    const int64_t mlp =
        (is_fused && !config.IsSparse(i) ? mlp_values * 3 / 2 : mlp_values * 2 / 3) + 3 * H;
    int64_t bytes = mlp * value_bytes;
    if (recompute == Recompute::kFull) {
      // The outputs of both blocks, and the gradients of the layer's outputs and of its inputs.
      bytes += LayerBytes(config, i, value_bytes, Recompute::kNone, is_fused) + 6 * H * value_bytes;
    } else if (recompute == Recompute::kAttention) {
      const int64_t again = AttentionValues(config, is_fused).Bytes(value_bytes) +
                            (2 * Q + 2 * K + 3 * H) * value_bytes -
                            MlpValues(config, i, is_fused).Bytes(value_bytes);
      bytes = std::max(bytes, again);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

// Returns the largest number of parameters of a layer.
int64_t LargestLayer(const ModelConfig& config) {
  const int64_t H = config.hidden_size;
  const int64_t Q = config.num_attention_heads * config.head_dim;
  const int64_t K = config.num_key_value_heads * config.head_dim;
  int64_t mlp = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    mlp = std::max(mlp, config.IsSparse(i)
                            ? config.moe.num_experts * (3 * H * config.moe.intermediate_size + H)
                            : 3 * H * config.intermediate_size);
  }
  return 2 * H * (Q + K) + mlp + 2 * H;
}

// Returns the number of values that are trained.
int64_t NumTrained(const TrainingPlanInput& input) {
  return input.lora.is_on() ? input.lora.total() : input.engine.config.NumParameters();
}

// Returns how many of them have the model's type.
int64_t NumTrainedWeights(const TrainingPlanInput& input) {
  return NumTrained(input) - input.lora.adapters;
}

// Returns the bytes of the buckets in flight, and of those that a backward pass computes.
int64_t GradientBucketBytes(const TrainingPlanInput& input) {
  const ModelConfig& config = input.engine.config;
  const int64_t P = NumTrained(input);
  int64_t elements = std::min(P, input.buckets_in_flight * input.bucket_elements);
  if (input.shard_gradients) {
    elements += std::min(P, config.vocab_size * config.hidden_size + 3 * LargestLayer(config) +
                                input.bucket_elements);
  }
  return kFloatBytes * elements;
}

MemoryAdvice TrainingAdvice(const EnginePlanInput& engine) {
  using enum MemoryItem;
  const std::string state = Concat(engine.budget.on_cpu() ? "" : " or optimizer.offload to true",
                                   ", or use a smaller student or a device with more memory");
  MemoryAdvice advice;
  advice.by_item = {
      {kOptimizerMoments, "set optimizer.moments to bfloat16" + state},
      {kMasterWeights, "set optimizer.master to none" + state},
      {kRuntime, "give the process more memory"},
      {kHeap, "give the process more memory"},
      {kBeyondRollouts, "set trainer.recompute to full, or lower trainer.micro_batch_tokens"},
      {kTrainingActivations,
       "set trainer.recompute to full, or lower trainer.micro_batch_tokens; a longer sequence "
       "forms a micro-batch by itself, so lowering data.max_response_length or "
       "data.max_prompt_length also helps"},
      {kGradients,
       "set dist.gradients to sharded on several ranks, or use a smaller student or a device "
       "with more memory"},
      {kBackwardBuffers, "lower trainer.micro_batch_tokens"},
      {kLossHead, "lower trainer.head_workspace_mb or trainer.micro_batch_tokens"},
      {kKvPool, "lower rollout.kv_cache_gb or rollout.max_num_seqs"},
      {kActivations, "lower rollout.max_num_seqs"},
      {kCudaGraphs, "lower rollout.max_num_seqs or set rollout.cuda_graphs to false"},
      {kHeadWorkspace, "lower trainer.head_workspace_mb"},
      {kCheckpointCopy, "set trainer.async_save to off"},
      {kTeacherWeights, "set teacher.weights to live, or teacher.kind to server"},
      {kTeacherAverage, "set teacher.weights to live or start, or teacher.kind to server"},
      {kTeacherEngine, "lower trainer.head_workspace_mb"},
      {kEvaluationWeights, "set eval.mode to blocking"},
      {kEvaluationEngine,
       "lower eval.kv_cache_gb, trainer.head_workspace_mb or rollout.max_num_seqs, or set "
       "eval.mode to blocking"},
      {kScoredRollouts,
       "lower data.train_batch_size, rollout.n, teacher.top_k or trainer.async_steps"},
      {kRolloutWeights, "set trainer.async_steps to 0"},
  };
  advice.for_weights =
      engine.dtype == DataType::kBFloat16
          ? "use a smaller student, or a device with more memory"
          : "set student.dtype to bfloat16, use a smaller student, or a device with more memory";
  return advice;
}

// Returns one rank's part of values that the ranks share.
int64_t ShardOf(const TrainingPlanInput& input, int64_t num_values) {
  return CeilDiv(num_values, input.num_ranks);
}
std::string ShardNote(const TrainingPlanInput& input) {
  return input.num_ranks > 1 ? Concat("; one of ", input.num_ranks, " shares") : "";
}

int64_t AdapterBytes(const TrainingPlanInput& input) { return kFloatBytes * input.lora.adapters; }
int64_t TrainedWeightBytes(const TrainingPlanInput& input) {
  return NumTrainedWeights(input) * SizeOf(input.engine.dtype);
}

// Adds the lines of what is trained and of the optimizer.
void AddStateLines(const TrainingPlanInput& input, std::vector<MemoryLine>* lines) {
  using enum MemoryItem;
  const std::string &device = input.engine.budget.device, note = ShardNote(input);
  const std::string state_device = input.offload_elements > 0 ? "cpu" : device;
  const int64_t num_weights = NumTrainedWeights(input), shard = ShardOf(input, NumTrained(input));
  const bool has_master =
      input.float32_master && num_weights > 0 && input.engine.dtype != DataType::kFloat32;
  AppendLine(kAdapters, device, AdapterBytes(input), "float32; the weights are frozen", lines);
  AppendLine(kMasterWeights, state_device,
             has_master ? kFloatBytes * ShardOf(input, num_weights) : 0, "float32" + note, lines);
  AppendLine(kOptimizerMoments, state_device, (input.bfloat16_moments ? 4 : 8) * shard,
             (input.bfloat16_moments ? "bfloat16" : "float32") + note, lines);
  AppendLine(kTeacherAverage, state_device, input.keeps_average ? kFloatBytes * shard : 0,
             "float32" + note, lines);
  if (input.copies_checkpoints) {
    // The lines so far have the adapters, if those are trained on the same device.
    const int64_t unlisted =
        TrainedWeightBytes(input) + (state_device == device ? 0 : AdapterBytes(input));
    AppendLine(kCheckpointCopy, "cpu", unlisted + HeldBytes(*lines, state_device),
               "weights, master weights and moments, while they are written beside a step", lines);
  }
  const int64_t staged_bytes = input.lora.is_on() ? kFloatBytes : SizeOf(input.engine.dtype);
  AppendLine(kOffloadBuffers, "cpu", 2 * input.offload_elements * (kFloatBytes + staged_bytes),
             "gradients and weights in flight between device and host", lines);
}

void AddGradientLines(const TrainingPlanInput& input, std::vector<MemoryLine>* lines) {
  const std::string& device = input.engine.budget.device;
  const int64_t num_trained = NumTrained(input);
  const bool is_sharded = input.shard_gradients;
  AppendLine(MemoryItem::kGradients, device,
             kFloatBytes * (is_sharded ? ShardOf(input, num_trained) : num_trained),
             "one sum in float32" + (is_sharded ? ShardNote(input) : ""), lines);
  if (input.num_ranks == 1) return;
  AppendLine(MemoryItem::kGradientBuckets, device, GradientBucketBytes(input),
             is_sharded ? "embedding, three layers, and what is in flight" : "what is in flight",
             lines);
}

// Returns the bytes that a backward pass needs besides the activations and the sums of gradients.
int64_t BackwardPassBytes(const TrainingPlanInput& input) {
  const ModelConfig& config = input.engine.config;
  const int64_t element = SizeOf(input.engine.dtype);
  const bool is_fused = IsFused(input.engine), has_adapters = input.lora.is_on();
  // With the fused functions, the embedding's gradient is added in place.
  const bool is_added = is_fused || (has_adapters && input.lora.embedding == 0);
  const int64_t embedding_gradient =
      is_added ? 0 : config.vocab_size * config.hidden_size * element;
  const int64_t copied_values = has_adapters && is_fused ? 2 * config.intermediate_size : 0;
  return input.micro_batch_tokens *
             (BackwardBytes(config, element, input.recompute, is_fused) + copied_values * element) +
         embedding_gradient;
}

// Adds the lines of a micro-batch's forward and backward pass and of the loss. The head and the
// layers' backward pass follow one another, so that only the larger one is held.
void AddPassLines(const TrainingPlanInput& input, std::vector<MemoryLine>* lines) {
  static const char* const kRecomputed[] = {"", "; attention is computed again",
                                            "; all layers are computed again"};
  const EnginePlanInput& engine = input.engine;
  const std::string& device = engine.budget.device;
  const int64_t num_tokens = input.micro_batch_tokens;
  AppendLine(MemoryItem::kTrainingActivations, device,
             SavedActivationBytes(engine.config, num_tokens, engine.dtype, input.recompute,
                                  IsFused(engine)),
             Concat("a micro-batch of ", num_tokens, " tokens",
                    kRecomputed[static_cast<int>(input.recompute)]),
             lines);
  const int64_t backward = BackwardPassBytes(input), head = HeadBytes(input);
  const bool head_is_larger = head > backward;
  AppendLine(MemoryItem::kBackwardBuffers, device, backward,
             "one layer's gradients, and what is computed again of it", lines,
             head_is_larger ? MemoryKind::kLimit : MemoryKind::kHeld);
  AppendLine(MemoryItem::kLossHead, device, head,
             Concat(input.micro_batch_rows, " response rows, logits of a chunk"), lines,
             head_is_larger ? MemoryKind::kHeld : MemoryKind::kLimit);
}

// Adds the lines of what waits between a rollout and its update, and the heap's.
void AddWaitingLines(const TrainingPlanInput& input, std::vector<MemoryLine>* lines) {
  AppendLine(MemoryItem::kHeap, "cpu", kHeapBytes,
             "free memory between the blocks of the heap, threads' buffers", lines);
  if (input.copies_rollout_weights) {
    AppendLine(MemoryItem::kRolloutWeights, input.engine.budget.device,
               AdapterBytes(input) + TrainedWeightBytes(input),
               "one version, which generates while the student is trained", lines);
  }
  // Ids and log-probs of the support; id, behavior and teacher's log-probs, tail.
  AppendLine(MemoryItem::kScoredRollouts, "cpu", input.step_rows * (input.support_size * 8 + 20),
             Concat(input.step_rows, " response tokens that wait for their update"), lines);
}

}  // namespace

int64_t SavedActivationBytes(const ModelConfig& config, int64_t num_tokens, DataType dtype,
                             Recompute recompute, bool is_fused) {
  int64_t token_bytes = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    token_bytes += LayerBytes(config, i, SizeOf(dtype), recompute, is_fused);
  }
  return num_tokens * token_bytes;
}

std::vector<MemoryLine> TrainingLines(const TrainingPlanInput& input) {
  std::vector<MemoryLine> lines;
  AddStateLines(input, &lines);
  AddGradientLines(input, &lines);
  AddPassLines(input, &lines);
  AddWaitingLines(input, &lines);
  return lines;
}

int64_t PoolBytesOfOneSequence(const EnginePlanInput& engine) {
  const int64_t max_model_len =
      engine.max_model_len > 0 ? engine.max_model_len : engine.config.max_position_embeddings;
  return KvBlocksFor(max_model_len) *
         KvBlockBytes(engine.config, engine.dtype, engine.budget.on_cpu());
}

int64_t NeededPoolBytes(const EnginePlanInput& engine) {
  return engine.max_num_seqs * PoolBytesOfOneSequence(engine);
}

absl::StatusOr<EnginePlan> PlanTraining(TrainingPlanInput input, EnginePlan* refused) {
  EnginePlanInput& engine = input.engine;
  engine.weights_are_parameters = true;
  if (engine.kv_cache_bytes > 0) {
    engine.kv_cache_bytes = std::min(engine.kv_cache_bytes, NeededPoolBytes(engine));
  }
  const int64_t rollout_bytes = input.overlaps ? 0 : RolloutBytes(engine, input.recompute);
  int64_t pass_bytes = 0;
  for (MemoryLine& line : TrainingLines(input)) {
    if (!input.overlaps && IsPass(line.item)) {
      if (line.kind == MemoryKind::kHeld) pass_bytes += line.bytes;
      line.kind = MemoryKind::kLimit;
    }
    engine.other_lines.push_back(std::move(line));
  }
  AppendLine(MemoryItem::kBeyondRollouts, engine.budget.device, pass_bytes - rollout_bytes, "",
             &engine.other_lines);
  EnginePlan too_large;
  absl::StatusOr<EnginePlan> plan = PlanEngine(engine, &too_large);
  if (plan.ok() || !absl::IsResourceExhausted(plan.status())) return plan;
  const MemoryLine* largest = LargestLine(too_large.lines, engine.budget.device);
  absl::Status status = plan.status();
  if (largest != nullptr) {
    const absl::Status refusal =
        DoesNotFit(engine.budget, too_large.lines, *largest, TrainingAdvice(engine));
    status = ResourceExhausted(
        refusal.message(),
        ". `taopd-trainer plan` prints all lines; trainer.memory_plan says what to do with them");
  }
  if (refused != nullptr) *refused = std::move(too_large);
  return status;
}

}  // namespace taopd
