#include "trainer/setup/plan/memory_plan.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <utility>

#include "common/base/memory.h"
#include "common/engine/model_plan.h"
#include "common/memory/memory_budget.h"
#include "common/model/decoder.h"
#include "taopd/base/round_up.h"
#include "trainer/dist/gradient_exchange.h"
#include "trainer/optim/host_update.h"
#include "trainer/setup/engine_options.h"
#include "trainer/step/support.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

struct PlannedStudent {
  ModelConfig model;
  DataType dtype = DataType::kFloat32;  // in which it is trained
  LoraCounts lora;                      // the adapters that are trained, if the weights are not
};

absl::StatusOr<PlannedStudent> ReadStudent(const TrainConfig& config,
                                           const std::string& model_dir) {
  PlannedStudent student;
  ModelConfig& model = student.model;
  TAOPD_ASSIGN_OR_RETURN(model, LoadModelConfig(model_dir));
  // A checkpoint already has the other tokenizer.
  if (!config.student.tokenizer.empty() && model_dir == config.student.model) {
    TAOPD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(config.student.tokenizer));
    TAOPD_ASSIGN_OR_RETURN(const VocabularyChange change,
                           ReadVocabularyChange(config.student.tokenizer, *tokenizer));
    TAOPD_RETURN_IF_ERROR(ChangeVocabulary(change, &model));
  }
  TAOPD_ASSIGN_OR_RETURN(student.dtype, ParseDtype(config.student.dtype,
                                                   model.dtype.empty() ? "float32" : model.dtype));
  const auto lora = config.student.lora.Counts(model);
  if (!lora.ok())
    return absl::Status(lora.status().code(), Concat("student.", lora.status().message()));
  student.lora = *lora;
  return student;
}

// Returns the input of the plan. REQUIRES: no setting is auto, except possibly the KV pool.
TrainingPlanInput InputOf(const TrainConfig& config, const PlannedStudent& student,
                          const MemoryBudget& budget, int64_t num_ranks) {
  const auto& [model, dtype, lora] = student;
  const int64_t num_rollouts = NumRollouts(config, num_ranks);
  TrainingPlanInput input;
  input.lora = lora;
  input.engine = PlanInputOf(MakeRolloutEngineOptions(config, model.vocab_size, num_ranks), model,
                             dtype, budget);
  const int64_t longest = config.data.max_prompt_length + config.data.max_response_length;
  const int64_t sequences = CeilDiv(config.trainer.mini_batch_size, num_ranks) * config.rollout.n;
  const int64_t budget_tokens = config.trainer.MicroBatchTokens();
  const int64_t in_micro_batch = std::clamp<int64_t>(budget_tokens / longest, 1, sequences);
  input.micro_batch_tokens = in_micro_batch * longest;
  // Sequences shorter than the longest fill a micro-batch up to its limit.
  if (sequences > in_micro_batch) {
    input.micro_batch_tokens =
        std::max(input.micro_batch_tokens, std::min(budget_tokens, sequences * longest));
  }
  input.micro_batch_rows =
      std::min(input.micro_batch_tokens, sequences * config.data.max_response_length);
  input.recompute = RecomputeOf(config.trainer);
  input.num_ranks = num_ranks;
  input.shard_gradients = config.dist.ShardsGradients(num_ranks);
  input.bucket_elements = kDefaultBucketElements;
  input.buckets_in_flight = GradientExchange::kMaxInFlight;
  input.bfloat16_moments = config.optimizer.moments == MomentsDtype::kBfloat16;
  input.float32_master = config.optimizer.master == MasterWeights::kFloat32;
  input.offload_elements = config.optimizer.offload ? HostUpdate::kChunkElements : 0;
  input.copies_checkpoints = config.trainer.async_save == AsyncSave::kOn;
  input.overlaps = config.data.train_batch_size > config.trainer.mini_batch_size ||
                   config.trainer.async_steps > 0;
  input.copies_rollout_weights = config.trainer.async_steps > 0 && !config.rollout.IsElsewhere();
  input.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  const SupportOptions support = MakeSupportOptions(config, model.vocab_size);
  input.keeps_average = KeepsAverage(config.teacher, config.teachers);
  input.engine.other_lines = ModelCopyLines(config, model, dtype, budget);
  input.support_size = support.kind == SupportKind::kFullVocabulary
                           ? model.vocab_size
                           : support.teacher_top_k + support.student_top_k;
  input.step_rows =
      num_rollouts * config.data.max_response_length * (config.trainer.async_steps + 1);
  return input;
}

// Returns the sizes of the pool that are tried while the other settings are chosen.
std::vector<int64_t> ProvisionalPools(const EnginePlanInput& engine) {
  const int64_t needed = NeededPoolBytes(engine), one = PoolBytesOfOneSequence(engine);
  std::vector<int64_t> pools;
  for (const int64_t share : {engine.budget.limit_bytes / 5, engine.budget.limit_bytes / 20, one}) {
    pools.push_back(std::min(needed, std::max(one, share)));
  }
  return pools;
}

// One choice of the settings that are auto.
struct Choice {
  GradientSums gradients = GradientSums::kAuto;
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  int64_t micro_batch_tokens = 0;
};

std::vector<int64_t> MicroBatchChoices(const TrainConfig& config) {
  if (config.trainer.micro_batch_tokens) return {*config.trainer.micro_batch_tokens};
  const int64_t longest = config.data.max_prompt_length + config.data.max_response_length;
  std::vector<int64_t> choices;
  for (int64_t tokens = TrainerConfig::kDefaultMicroBatchTokens; tokens > longest; tokens /= 2) {
    choices.push_back(tokens);
  }
  choices.push_back(longest);
  return choices;
}

// Returns the choices in the order in which the plan tries them. Sharded gradients come last,
// because their traffic grows with the number of micro-batches, unlike the cost of recomputation.
std::vector<Choice> Choices(const TrainConfig& config, int64_t num_ranks) {
  std::vector<GradientSums> gradients = {config.dist.gradients};
  // One rank has nobody to share with.
  if (config.dist.gradients == GradientSums::kAuto && num_ranks > 1) {
    gradients = {GradientSums::kWhole};
    if (!config.dist.deterministic) gradients.push_back(GradientSums::kSharded);
  }
  std::vector<RecomputeChoice> recompute = {config.trainer.recompute};
  if (config.trainer.recompute == RecomputeChoice::kAuto)
    recompute = {RecomputeChoice::kNone, RecomputeChoice::kAttention, RecomputeChoice::kFull};
  std::vector<Choice> choices;
  for (const GradientSums g : gradients) {
    for (const RecomputeChoice r : recompute) {
      for (const int64_t tokens : MicroBatchChoices(config)) choices.push_back({g, r, tokens});
    }
  }
  return choices;
}

}  // namespace

absl::StatusOr<MemoryBudget> BudgetOf(const TrainConfig& config, int64_t num_local_ranks) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(config.trainer.device));
  if (device.is_cpu()) {
    MemoryLimits limits;
    TAOPD_ASSIGN_OR_RETURN(limits.cpu_memory_limit_bytes,
                           ParseMemoryBytes(config.trainer.cpu_memory_limit));
    TAOPD_ASSIGN_OR_RETURN(MemoryBudget budget, CpuBudget(limits));
    if (limits.cpu_memory_limit_bytes == 0 && num_local_ranks > 1) {
      budget.limit_bytes /= num_local_ranks;
      budget.source += Concat(", for each of ", num_local_ranks, " ranks");
    }
    return WithinOwnLimits(std::move(budget));
  }
  const auto [free_bytes, total_bytes] =
      c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  return CudaBudget(MemoryLimits(), device.str(), static_cast<int64_t>(total_bytes),
                    static_cast<int64_t>(free_bytes));
}

absl::StatusOr<EnginePlan> ResolveAuto(TrainConfig* config, const std::string& model_dir,
                                       const MemoryBudget& budget, const RunPlanOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(const PlannedStudent student, ReadStudent(*config, model_dir));
  if (budget.on_cpu()) TAOPD_RETURN_IF_ERROR(CheckSettingsForCpu(*config));
  const auto input_of = [&](const TrainConfig& choice) {
    return InputOf(choice, student, budget, options.num_ranks);
  };
  const bool chooses_pool = !config->rollout.kv_cache_gb;
  const std::vector<int64_t> pools =
      chooses_pool ? ProvisionalPools(input_of(*config).engine) : std::vector<int64_t>{0};
  absl::StatusOr<EnginePlan> plan = Internal("no plan was made");
  for (const int64_t pool_bytes : pools) {
    for (const Choice& chosen : Choices(*config, options.num_ranks)) {
      TrainConfig choice = *config;
      choice.dist.gradients = chosen.gradients;
      choice.trainer.recompute = chosen.recompute;
      choice.trainer.micro_batch_tokens = chosen.micro_batch_tokens;
      TrainingPlanInput input = input_of(choice);
      if (chooses_pool) input.engine.kv_cache_bytes = pool_bytes;
      plan = PlanTraining(input, options.refused);
      if (!plan.ok() && absl::IsResourceExhausted(plan.status())) continue;
      if (!plan.ok()) return plan;
      if (chooses_pool) {
        const int64_t left = budget.limit_bytes - plan->total_bytes + plan->kv_pool_bytes();
        // Whole MiB are exact as a setting.
        const int64_t mib = std::min(CeilDiv(NeededPoolBytes(input.engine), kMib), left / kMib);
        choice.rollout.kv_cache_gb = static_cast<double>(mib) / 1024;
        plan = PlanTraining(input_of(choice), options.refused);
        if (!plan.ok()) return plan;
      }
      *config = std::move(choice);
      return plan;
    }
  }
  return plan;
}

int64_t MaxPinnedCheckpoints(const TrainConfig& config) {
  return (config.trainer.best_metric.empty() ? 0 : 1) + (RollsBack(config.guard) ? 1 : 0) +
         (config.eval.mode == EvalMode::kBeside ? 1 : 0);
}

int64_t MaxPublishedVersions(const TrainConfig& config, int64_t num_ranks) {
  int64_t num_versions = 0;
  for (const auto* servers : {&config.rollout.endpoints, &config.rollout.eval_endpoints})
    num_versions += servers->empty() ? 0 : num_ranks + static_cast<int64_t>(servers->size());
  return num_versions;
}

absl::StatusOr<DiskPlan> DiskPlanOf(const TrainConfig& config, const std::string& model_dir,
                                    int64_t num_ranks) {
  TAOPD_ASSIGN_OR_RETURN(const PlannedStudent student, ReadStudent(config, model_dir));
  const auto& [model, dtype, lora] = student;
  const int64_t num_weights = lora.is_on() ? lora.saved() : model.NumParameters();
  // A head that is tied to a saved embedding is stored as well.
  const int64_t tied_head = model.tie_word_embeddings ? lora.embedding : 0;
  const int64_t average_bytes = KeepsAverage(config.teacher, config.teachers) ? 4 : 0;
  const auto state_bytes = [&](bool is_float32) {
    return config.optimizer.StateBytesPerParameter(is_float32) + average_bytes;
  };
  return PlanDisk({.weight_bytes = 4 * lora.adapters + SizeOf(dtype) * (num_weights + tied_head),
                   .state_bytes = lora.adapters * state_bytes(/*is_float32=*/true) +
                                  num_weights * state_bytes(dtype == DataType::kFloat32),
                   .checkpoints = {.keep_last = config.trainer.keep_checkpoints,
                                   .keep_every = config.trainer.keep_every},
                   .max_pinned = MaxPinnedCheckpoints(config),
                   .total_steps = config.trainer.total_steps,
                   .num_published = MaxPublishedVersions(config, num_ranks),
                   .run_dir = config.run.Directory(),
                   .weights_dir = config.rollout.weights_dir});
}

namespace {

// Returns the number of parameters with which a token is computed. An embedding that is not also
// the head is only read, and a token passes through some of the experts.
int64_t ActiveParameters(const ModelConfig& model) {
  int64_t active = model.NumParameters();
  if (!model.tie_word_embeddings) active -= model.vocab_size * model.hidden_size;
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (!model.IsSparse(layer)) continue;
    active -= (model.moe.num_experts - model.moe.experts_per_token) * 3 * model.hidden_size *
              model.moe.intermediate_size;
  }
  return active;
}

// Returns the bytes that an update reads and writes for one parameter. The gradient is read twice
// and cleared; both moments and the weights that take the update are read and written, and if these
// are a float32 copy, the weights of `weight_bytes` are written as well.
int64_t UpdateBytesPerParameter(const OptimizerConfig& config, int64_t weight_bytes) {
  const int64_t moments = config.moments == MomentsDtype::kBfloat16 ? 8 : 16;
  const bool has_copy = weight_bytes != 4 && config.master == MasterWeights::kFloat32;
  return 12 + moments + (has_copy ? 8 + weight_bytes : 2 * weight_bytes);
}

}  // namespace

absl::StatusOr<StepWork> StepWorkOf(const TrainConfig& config, const std::string& model_dir,
                                    int64_t num_ranks) {
  TAOPD_ASSIGN_OR_RETURN(const PlannedStudent student, ReadStudent(config, model_dir));
  const auto& [model, dtype, lora] = student;
  StepWork work;
  work.num_parameters = model.NumParameters();
  work.adapter_parameters = lora.total();
  work.bytes_per_weight = SizeOf(dtype);
  work.active_parameters = ActiveParameters(model);
  work.kv_bytes_per_token = model.KvBytesPerToken(work.bytes_per_weight);
  work.num_sequences = config.data.train_batch_size * config.rollout.n;
  work.prompt_tokens = config.data.max_prompt_length;
  work.response_tokens = config.data.max_response_length;
  // On average, a sequence has half of its response. As many run as the pool holds.
  const int64_t context = work.prompt_tokens + work.response_tokens / 2;
  const auto pool_bytes =
      static_cast<int64_t>(config.rollout.kv_cache_gb.value_or(0) * 1024) * kMib;
  work.max_running =
      std::min(config.rollout.max_num_seqs, pool_bytes / (context * work.kv_bytes_per_token));
  work.rollouts_of_prompt = config.rollout.n;
  work.updates = config.data.train_batch_size / config.trainer.mini_batch_size;
  if (config.dist.ShardsGradients(num_ranks)) {
    const int64_t sequences = CeilDiv(config.trainer.mini_batch_size * config.rollout.n, num_ranks);
    const int64_t in_micro_batch = std::max<int64_t>(
        1, config.trainer.MicroBatchTokens() / (work.prompt_tokens + work.response_tokens));
    work.micro_batches = CeilDiv(sequences, in_micro_batch);
  }
  work.recomputes_layers = config.trainer.recompute == RecomputeChoice::kFull;
  work.optimizer_bytes_per_parameter = UpdateBytesPerParameter(
      config.optimizer, work.adapter_parameters > 0 ? 4 : work.bytes_per_weight);
  work.updates_on_host = config.optimizer.offload;
  work.num_ranks = num_ranks;
  return work;
}

}  // namespace taopd
