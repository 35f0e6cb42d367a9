// Makes the memory plan of an engine on a model: an EnginePlan (common/memory/engine_plan.h) for
// EngineOptions, a model's configuration and a device. It does not depend on LibTorch. All
// functions are thread-safe.
#pragma once

#include <string>

#include "common/engine/engine.h"
#include "common/memory/engine_plan.h"

namespace taopd {

// Returns the plan's input for weights that are not in a file, such as a trainer's. For weights in
// files, set stored_dtype and weights_are_parameters.
EnginePlanInput PlanInputOf(const EngineOptions& options, const ModelConfig& config, DataType dtype,
                            const MemoryBudget& budget);

// Plans the engine that LoadEngine would make. Reads config.json and the headers of the safetensors
// files, but no weights. `dtype` is DecoderOptions::dtype; "auto" means the stored type. If the
// directory has neither model.safetensors nor its index, the plan is made from config.json, with a
// warning. Returns the errors of LoadModelConfig, OpenSafetensorsModel and PlanEngine. PlanEngine
// explains `refused`, and LoadEngine `adapter_dir` and `takes_weights`.
absl::StatusOr<EnginePlan> PlanModel(const std::string& model_dir, const std::string& dtype,
                                     const MemoryBudget& budget, const EngineOptions& options,
                                     EnginePlan* refused = nullptr,
                                     const std::string& adapter_dir = "",
                                     bool takes_weights = false);

// Returns the bytes that are left for a planned pool of pages when the packed weights take
// unplanned_bytes more than planned (Decoder::PrepareInference). Logs a warning unless
// unplanned_bytes is 0. Returns RESOURCE_EXHAUSTED if nothing is left of a pool that is not empty.
absl::StatusOr<int64_t> PoolBytesLeft(int64_t unplanned_bytes, int64_t pool_bytes);

// Logs each line of the plan, the totals, and the warnings.
void LogPlan(const EnginePlan& plan);

}  // namespace taopd
