#include "common/engine/engine_factory.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <exception>

#include "common/engine/model_plan.h"
#include "common/engine/parallel/leader_decoder.h"
#include "common/engine/request_validation.h"
#include "common/engine/torch_engine.h"
#include "common/engine/worker_threads.h"
#include "common/model/kernel_setup.h"
#include "common/model/torch_errors.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/weights.h"

namespace taopd {
namespace {

constexpr int kMaxThreads = 4096;

// Returns the budget of each of `num_processes`, which share a CPU's memory or have one GPU each.
absl::StatusOr<MemoryBudget> BudgetOf(const std::string& device, const MemoryLimits& limits,
                                      int64_t num_processes) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device parsed, ParseDevice(device));
  if (parsed.is_cpu()) {
    TAOPD_ASSIGN_OR_RETURN(MemoryBudget budget, CpuBudget(limits));
    if (num_processes > 1) {
      budget.limit_bytes /= num_processes;
      budget.source += Concat(", for each of ", num_processes, " processes");
    }
    return WithinOwnLimits(std::move(budget));
  }
  const auto [free_bytes, total_bytes] =
      c10::getDeviceAllocator(parsed.type())->getMemoryInfo(parsed.index());
  return CudaBudget(limits, parsed.str(), static_cast<int64_t>(total_bytes),
                    static_cast<int64_t>(free_bytes));
}

KernelUse KernelUseOf(const std::string& dtype, const std::string& device,
                      const EngineOptions& options) {
  return {.kernels = options.kernels,
          .device = device,
          .dtype = dtype,
          .max_len = options.max_model_len,
          .top_k = options.max_logprobs};
}

// Returns the description of the model, without the engine, its weights and the revision.
LoadedEngine Describe(const Decoder& decoder) {
  LoadedEngine loaded;
  loaded.dtype = ConfigDtype(decoder.dtype());
  loaded.device = decoder.device().str();
  loaded.architecture = decoder.config().architecture;
  loaded.num_parameters = decoder.config().NumParameters();
  loaded.eos_token_ids = decoder.config().eos_token_ids;
  return loaded;
}

absl::StatusOr<LoadedEngine> Load(const std::string& model_dir, const std::string& dtype,
                                  const std::string& device, int num_threads, EngineOptions options,
                                  const std::string& adapter_dir, bool takes_weights) {
  TAOPD_RETURN_IF_ERROR(ValidateEngineOptions(options));
  const bool is_parallel = options.tensor_parallel_size > 1;
  if (is_parallel && takes_weights) {
    return InvalidArgument("tensor_parallel_size ", options.tensor_parallel_size,
                           ": the weights of a tensor parallel model cannot be replaced");
  }
  const KernelUse use = KernelUseOf(dtype, device, options);
  TAOPD_RETURN_IF_ERROR(SetUpKernels(use, model_dir));
  TAOPD_ASSIGN_OR_RETURN(const MemoryBudget budget,
                         BudgetOf(device, options.memory, options.tensor_parallel_size));
  TAOPD_ASSIGN_OR_RETURN(const EnginePlan plan,
                         PlanModel(model_dir, dtype, budget, options, /*refused=*/nullptr,
                                   adapter_dir, takes_weights));
  LogPlan(plan);
  const bool planned_pool = options.kv_cache_bytes == kAutoKvCache;
  if (plan.scores_only) options.max_model_len = plan.max_model_len;

  DecoderOptions decoder_options;
  decoder_options.dtype = dtype;
  decoder_options.device = device;
  decoder_options.merged_adapter_dir = adapter_dir;
  TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<Decoder> decoder,
                         is_parallel ? LoadTensorParallel(model_dir, decoder_options, use,
                                                          options.tensor_parallel_size, num_threads)
                                     : LoadDecoder(model_dir, decoder_options));
  LoadedEngine loaded = Describe(*decoder);
  // Hashing takes as long as reading the files, so the engine is made meanwhile.
  auto revision = is_parallel ? StartStoredRevision(model_dir, loaded.dtype, adapter_dir)
                              : StartWeightsRevision(*decoder);
  const int64_t unplanned_bytes = decoder->PrepareInference();
  if (planned_pool) {
    TAOPD_ASSIGN_OR_RETURN(options.kv_cache_bytes,
                           PoolBytesLeft(unplanned_bytes, plan.kv_pool_bytes()));
  }
  TAOPD_ASSIGN_OR_RETURN(loaded.engine, MakeTorchEngine(decoder, options));
  TAOPD_ASSIGN_OR_RETURN(loaded.revision, revision.get());
  if (takes_weights) {
    loaded.weights = MakeDecoderWeights(decoder);
  } else {
    decoder->KeepForInferenceOnly();
  }
  ReleaseWorkerThreads();  // the threads that packed weights
  return loaded;
}

}  // namespace

absl::StatusOr<MemoryBudget> FindBudget(const std::string& device, const MemoryLimits& limits,
                                        int64_t num_processes) {
  try {
    return BudgetOf(device, limits, num_processes);
  } catch (const std::exception& error) {
    return StatusOfException(error, Concat("device ", device));
  }
}

absl::StatusOr<LoadedEngine> LoadEngine(const std::string& model_dir, const std::string& dtype,
                                        const std::string& device, int num_threads,
                                        const EngineOptions& options,
                                        const std::string& adapter_dir, bool takes_weights) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads ", num_threads,
                           " must be between 0 (LibTorch's default) and ", kMaxThreads);
  }
  if (num_threads > 0) at::set_num_threads(num_threads);
  try {
    return Load(model_dir, dtype, device, num_threads, options, adapter_dir, takes_weights);
  } catch (const std::exception& error) {
    return StatusOfException(error, Concat("loading ", model_dir, " failed"));
  }
}

}  // namespace taopd
