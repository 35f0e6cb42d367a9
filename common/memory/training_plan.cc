#include "common/memory/training_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "common/base/memory.h"

namespace taopd {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr char kActivations[] = "training activations";
constexpr char kBackward[] = "backward buffers";
constexpr char kHead[] = "loss head";
constexpr char kBeyond[] = "training, beyond the rollouts' memory";

bool IsPass(const std::string& name) {
  return name == kActivations || name == kBackward || name == kHead;
}

// What the engine needs while it generates and gives back when it is done.
int64_t RolloutBytes(EnginePlanInput engine) {
  engine.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<EnginePlan> plan = PlanEngine(engine);
  int64_t bytes = 0;
  for (const MemoryLine& line : plan.ok() ? plan->lines : std::vector<MemoryLine>()) {
    const bool is_given_back =
        line.name == "activations" || line.name == "head workspace" || line.name == "KV pool";
    if (is_given_back && line.device == engine.budget.device) bytes += line.bytes;
  }
  return bytes;
}

int64_t HeadBytes(const TrainingPlanInput& input) {
  const ModelConfig& config = input.engine.config;
  const int64_t b = BytesOf(input.engine.dtype);
  const int64_t row_bytes = config.vocab_size * b;
  const int64_t rows_that_fit = std::max<int64_t>(1, input.head_workspace_bytes / row_bytes);
  return 2 * input.micro_batch_rows * config.hidden_size * b +
         config.vocab_size * config.hidden_size * kFloatBytes +
         std::min(input.micro_batch_rows, rows_that_fit) * row_bytes;
}

// What to change, by the name of the line; empty for lines of which the engine's plan says it.
std::string RemedyFor(const std::string& name, const EnginePlanInput& engine) {
  static const std::map<std::string, std::string> remedies = {
      {"runtime", "give the process more memory"},
      {kBeyond, "lower trainer.micro_batch_tokens"},
      {kActivations,
       "lower trainer.micro_batch_tokens; one sequence goes alone, so also "
       "data.max_response_length and data.max_prompt_length"},
      {kBackward, "lower trainer.micro_batch_tokens"},
      {kHead, "lower trainer.head_workspace_mb or trainer.micro_batch_tokens"},
      {"KV pool", "lower rollout.kv_cache_gb or rollout.max_num_seqs"},
      {"activations", "lower rollout.max_num_seqs"},
      {"head workspace", "lower trainer.head_workspace_mb"},
      {"scored rollouts", "lower data.train_batch_size, rollout.n or teacher.top_k"},
  };
  const auto found = remedies.find(name);
  if (found != remedies.end()) return found->second;
  return engine.dtype == WeightDtype::kBfloat16
             ? "use a smaller student, or a device with more memory"
             : "set student.dtype to bfloat16, use a smaller student, or a device with more memory";
}

}  // namespace

int64_t SavedActivationBytes(const ModelConfig& config, int64_t num_tokens, WeightDtype dtype) {
  const int64_t H = config.hidden_size, I = config.intermediate_size;
  const int64_t Q = config.num_attention_heads * config.head_dim;
  const int64_t K = config.num_key_value_heads * config.head_dim;
  int64_t values = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    values += 4 * H + 2 * Q + 2 * K + (config.qk_norm ? Q + K : 0) + Q + 2 * K;
    values += config.IsSparse(i)
                  ? config.moe.num_experts +
                        config.moe.experts_per_token * (3 * config.moe.intermediate_size + 2 * H)
                  : 3 * I;
  }
  return num_tokens * values * BytesOf(dtype);
}

std::vector<MemoryLine> TrainingLines(const TrainingPlanInput& input) {
  const EnginePlanInput& engine = input.engine;
  const std::string& device = engine.budget.device;
  const int64_t P = engine.config.NumParameters(), b = BytesOf(engine.dtype);
  const bool is_float = engine.dtype == WeightDtype::kFloat32;
  std::vector<MemoryLine> lines;
  const auto add = [&](const std::string& name, const std::string& on, int64_t bytes,
                       const std::string& note) {
    if (bytes > 0) lines.push_back({name, on, MemoryKind::kHeld, bytes, note});
  };
  add("master weights", device, is_float ? 0 : kFloatBytes * P, "float32");
  add("optimizer moments", device, 2 * kFloatBytes * P, "float32");
  add("gradients", device, input.accumulates ? P * (b + kFloatBytes) : P * b,
      input.accumulates ? "of a backward pass, and their sum in float32" : "of one backward pass");
  const std::string tokens = Concat("a micro-batch of ", input.micro_batch_tokens, " tokens");
  add(kActivations, device,
      SavedActivationBytes(engine.config, input.micro_batch_tokens, engine.dtype), tokens);
  add(kBackward, device,
      ActivationBytes(engine.config, input.micro_batch_tokens, engine.dtype,
                      engine.budget.on_cpu()),
      "gradients of one layer's values");
  add(kHead, device, HeadBytes(input),
      Concat(input.micro_batch_rows, " response rows, the head's gradient, logits of a chunk"));
  // Ids and log-probs of the support; id, behavior and teacher's log-probs, tail.
  add("scored rollouts", "cpu", input.step_rows * (input.support_size * 8 + 20),
      Concat(input.step_rows, " response tokens of a step"));
  return lines;
}

absl::StatusOr<EnginePlan> PlanTraining(TrainingPlanInput input, EnginePlan* refused) {
  EnginePlanInput& engine = input.engine;
  engine.weights_are_parameters = true;
  const int64_t max_model_len =
      engine.max_model_len > 0 ? engine.max_model_len : engine.config.max_position_embeddings;
  if (engine.kv_cache_bytes > 0) {
    const int64_t blocks = (max_model_len + kBlockTokens - 1) / kBlockTokens;
    const int64_t block_bytes = KvBlockBytes(engine.config, engine.dtype, engine.budget.on_cpu());
    engine.kv_cache_bytes =
        std::min(engine.kv_cache_bytes, engine.max_num_seqs * blocks * block_bytes);
  }
  const int64_t rollout_bytes = input.overlaps ? 0 : RolloutBytes(engine);
  int64_t pass_bytes = 0;
  for (MemoryLine& line : TrainingLines(input)) {
    if (!input.overlaps && IsPass(line.name)) {
      pass_bytes += line.bytes;
      line.kind = MemoryKind::kLimit;
    }
    engine.other_lines.push_back(std::move(line));
  }
  if (const int64_t beyond = pass_bytes - rollout_bytes; beyond > 0) {
    engine.other_lines.push_back({kBeyond, engine.budget.device, MemoryKind::kHeld, beyond, ""});
  }
  EnginePlan too_large;
  absl::StatusOr<EnginePlan> plan = PlanEngine(engine, &too_large);
  if (plan.ok() || !absl::IsResourceExhausted(plan.status())) return plan;
  const MemoryLine* largest = LargestLine(too_large.lines, engine.budget.device);
  absl::Status status = plan.status();
  if (largest != nullptr) {
    status = ResourceExhausted(
        "the memory plan takes ", MemoryText(HeldBytes(too_large.lines, engine.budget.device)),
        " on ", engine.budget.device, ", which exceeds its ", MemoryText(engine.budget.limit_bytes),
        " (", engine.budget.source, "). The line that is too large is \"", largest->name,
        "\" with ", MemoryText(largest->bytes), ": ", RemedyFor(largest->name, engine),
        ". `taopd-trainer plan` prints all lines; trainer.memory_plan says what to do with them");
  }
  if (refused != nullptr) *refused = std::move(too_large);
  return status;
}

}  // namespace taopd
