// Makes an engine from a model directory, for code that must not include LibTorch.
#pragma once

#include <memory>
#include <string>

#include "common/engine/engine.h"
#include "common/engine/engine_weights.h"
#include "common/memory/memory_budget.h"

namespace taopd {

struct LoadedEngine {
  std::unique_ptr<InferenceEngine> engine;
  std::unique_ptr<EngineWeights> weights;  // null unless `takes_weights`
  std::string revision;                    // WeightsRevision of the model
  std::string dtype;                       // "float32", "bfloat16"
  std::string device;                      // "cpu", "cuda:0"
  std::string architecture;
  int64_t num_parameters = 0;
  std::vector<int32_t> eos_token_ids;
};

// Returns the memory that each of `num_processes` processes, this one included, may use of `device`
// (DecoderOptions::device). On a CUDA device this creates the context.
absl::StatusOr<MemoryBudget> FindBudget(const std::string& device, const MemoryLimits& limits,
                                        int64_t num_processes);

// Plans the memory (PlanModel in common/engine/model_plan.h) and logs the plan, loads the model
// (LoadDecoder) and starts an engine on it (MakeTorchEngine). DecoderOptions
// (common/model/weights/model_files.h) explains `dtype` and `device`. `num_threads` sets LibTorch's
// threads for the whole process; 0 leaves them as they are, by default one per core. An error that
// a file causes names the file. Returns RESOURCE_EXHAUSTED if the plan does not fit, before any
// weights are read, or if memory runs out. If `adapter_dir` is not empty, the adapter there is
// merged into the weights (DecoderOptions::merged_adapter_dir), and the revision names the merged
// weights. `takes_weights` allows the weights to be replaced later. It requires a
// tensor_parallel_size of 1 and keeps the parameters in memory next to their packed copies, unless
// they are in mapped files.
absl::StatusOr<LoadedEngine> LoadEngine(const std::string& model_dir, const std::string& dtype,
                                        const std::string& device, int num_threads,
                                        const EngineOptions& options,
                                        const std::string& adapter_dir = "",
                                        bool takes_weights = false);

}  // namespace taopd
