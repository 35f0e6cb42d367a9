// InferenceEngine on a LibTorch Decoder. Includes LibTorch: servers include engine.h and get an
// engine from engine_factory.h.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "common/model/decoder.h"

namespace taopd {

// `decoder` is shared: the trainer steps its parameters in place between rollouts. The owner must
// not change parameters while stats().num_waiting + num_running > 0. The engine's thread starts
// here and ends with the object (unfinished requests get UNAVAILABLE).
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeTorchEngine(std::shared_ptr<Decoder> decoder,
                                                                 const EngineOptions& options,
                                                                 Clock* clock = Clock::Real());

}  // namespace taopd
