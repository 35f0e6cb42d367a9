// The memory plan of an engine on a model: EngineOptions, a configuration and a device in, an
// EnginePlan out (common/memory/engine_plan.h). Nothing here knows LibTorch. All functions are
// thread-safe.
#pragma once

#include <string>

#include "common/engine/engine.h"
#include "common/memory/engine_plan.h"

namespace taopd {

// The plan's input for weights that no file holds, such as a trainer's. For others, set
// stored_dtype and weights_are_parameters.
EnginePlanInput PlanInputOf(const EngineOptions& options, const ModelConfig& config,
                            WeightDtype dtype, const MemoryBudget& budget);

// Plans the engine that LoadEngine would make. Reads config.json and the headers of the safetensors
// files; no weights. `dtype` is that of DecoderOptions; "auto" is the stored one. If the directory
// has a config.json alone, the plan is made from it, with a warning. Errors are those of
// LoadModelConfig, OpenSafetensorsModel and PlanEngine, which also explains `refused`.
absl::StatusOr<EnginePlan> PlanModel(const std::string& model_dir, const std::string& dtype,
                                     const MemoryBudget& budget, const EngineOptions& options,
                                     EnginePlan* refused = nullptr);

// What is left of a planned pool of pages when the packed weights take unplanned_bytes more than
// planned (Decoder::PrepareInference); a warning says so. RESOURCE_EXHAUSTED if nothing is.
absl::StatusOr<int64_t> PoolBeside(int64_t unplanned_bytes, int64_t pool_bytes);

// Logs each line of the plan, the totals, and the warnings.
void LogPlan(const EnginePlan& plan);

}  // namespace taopd
