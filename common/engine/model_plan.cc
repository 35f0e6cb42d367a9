#include "common/engine/model_plan.h"

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/architectures/architecture.h"
#include "common/model/config/dtype.h"
#include "common/model/config/tensor_parallel.h"

namespace taopd {
namespace {

// Returns nullopt if the files lack the embedding or store it in another type; loading reports
// that.
std::optional<DataType> StoredDtype(const SafetensorsModel& stored, const ModelConfig& config) {
  const auto architecture = FindArchitecture(config.architecture);
  if (!architecture.ok()) return std::nullopt;
  const auto embedding = stored.tensors.find((*architecture)->names.embed_tokens);
  if (embedding == stored.tensors.end()) return std::nullopt;
  return DataTypeOfSafetensors(embedding->second.first.dtype);
}

}  // namespace

EnginePlanInput PlanInputOf(const EngineOptions& options, const ModelConfig& config, DataType dtype,
                            const MemoryBudget& budget) {
  EnginePlanInput input;
  input.config = config;
  input.dtype = dtype;
  input.budget = budget;
  input.max_model_len = options.max_model_len;
  input.max_num_seqs = options.max_num_seqs;
  input.max_num_batched_tokens = options.BatchedTokens(budget.on_cpu());
  input.head_workspace_bytes = options.HeadWorkspaceBytes(budget.on_cpu());
  input.kv_cache_bytes = options.kv_cache_bytes;
  input.cuda_graphs = options.cuda_graphs;
  input.kernels = options.kernels;
  input.tensor_parallel_size = options.tensor_parallel_size;
  return input;
}

absl::StatusOr<EnginePlan> PlanModel(const std::string& model_dir, const std::string& dtype,
                                     const MemoryBudget& budget, const EngineOptions& options,
                                     EnginePlan* refused, const std::string& adapter_dir,
                                     bool takes_weights) {
  TAOPD_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  const absl::StatusOr<SafetensorsModel> stored = OpenSafetensorsModel(model_dir);
  if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
  const std::optional<DataType> stored_dtype =
      stored.ok() ? StoredDtype(*stored, config) : std::nullopt;

  std::string described = config.dtype;
  if (described.empty() && stored_dtype) described = ConfigDtype(*stored_dtype);
  if (dtype == "auto" && described.empty()) {
    return InvalidArgument(model_dir, ": dtype auto: neither config.json nor a file of weights ",
                           "says what the weights are stored in; name a dtype");
  }
  TAOPD_ASSIGN_OR_RETURN(const DataType weight_dtype,
                         Annotate(ParseDtype(dtype, described), model_dir));

  const TensorParallel parallel = {0, options.tensor_parallel_size};
  TAOPD_RETURN_IF_ERROR(CheckTensorParallel(config, parallel.size));
  EnginePlanInput input = PlanInputOf(options, SliceOf(config, parallel), weight_dtype, budget);
  input.merges_adapter = !adapter_dir.empty();
  input.takes_weights = takes_weights;
  // Without files, the stored type is assumed to be that of config.json.
  const absl::StatusOr<DataType> described_dtype = ParseDtype("auto", config.dtype);
  input.stored_dtype = stored_dtype;
  if (!stored.ok()) {
    input.stored_dtype = described_dtype.ok() ? *described_dtype : weight_dtype;
    input.budget.warnings.push_back(
        Concat("there are no weights in ", model_dir, ": the sizes are those of config.json"));
  }
  return PlanEngine(input, refused);
}

absl::StatusOr<int64_t> PoolBytesLeft(int64_t unplanned_bytes, int64_t pool_bytes) {
  if (unplanned_bytes == 0) return pool_bytes;
  const std::string excess =
      Concat("matrices whose numbers are spread too widely for 12 bits each take ",
             MemoryText(unplanned_bytes), " more than planned, of a pool of pages of ",
             MemoryText(pool_bytes));
  if (pool_bytes > 0 && unplanned_bytes >= pool_bytes) return ResourceExhausted(excess);
  LogWarning("memory plan", {{"warning", excess}});
  return pool_bytes > 0 ? pool_bytes - unplanned_bytes : pool_bytes;
}

void LogPlan(const EnginePlan& plan) {
  for (const MemoryLine& line : plan.lines) {
    LogInfo("memory", {{"device", line.device},
                       {"for", NameOf(line.item)},
                       {"kind", NameOf(line.kind)},
                       {"bytes", line.bytes},
                       {"size", MemoryText(line.bytes)},
                       {"note", line.note}});
  }
  LogInfo("memory plan", {{"device", plan.budget.device},
                          {"total_bytes", plan.total_bytes},
                          {"limit_bytes", plan.budget.limit_bytes},
                          {"limit", plan.budget.source},
                          {"num_kv_blocks", plan.num_kv_blocks},
                          {"max_model_len", plan.max_model_len},
                          {"max_generation_len", plan.max_generation_len}});
  for (const std::string& warning : plan.warnings) {
    LogWarning("memory plan", {{"warning", warning}});
  }
}

}  // namespace taopd
