// The InferenceEngine that runs a LibTorch Decoder. This header includes LibTorch; code that must
// not include it gets an engine from engine_factory.h.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "common/model/decoder.h"

namespace taopd {

// Starts the engine's thread, which ends when the engine is destroyed; unfinished requests then end
// with UNAVAILABLE.
//
// `decoder` is shared, because the trainer updates its parameters in place between rollouts. They
// must not be changed while a request is waiting or running. `clock` must outlive the engine.
//
// Returns INVALID_ARGUMENT if the options exceed the model's positions, or if kv_cache_bytes does
// not hold one sequence of the max_model_len that was asked for. Where nobody asked for it,
// limits().max_generation_len tells how long a sequence that generates may be.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeTorchEngine(std::shared_ptr<Decoder> decoder,
                                                                 const EngineOptions& options,
                                                                 Clock* clock = Clock::Real());

}  // namespace taopd
