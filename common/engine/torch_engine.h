// The InferenceEngine that runs a LibTorch Decoder. This header includes LibTorch; code that must
// not include it gets an engine from engine_factory.h.
#pragma once

#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/engine/graphs/graph_backend.h"
#include "common/model/decoder.h"

namespace taopd {

// Starts the engine's thread, which ends when the engine is destroyed; unfinished requests then end
// with UNAVAILABLE.
//
// `decoder` is shared, because the trainer updates its parameters in place between rollouts. They
// must not be changed while a request is waiting or running. `clock` must outlive the engine.
//
// With options.cuda_graphs, the pages are allocated and the decode steps are captured before this
// returns. `graphs` captures them; null means CUDA graphs.
//
// `yields`, which may be null, lets the engine give way to other work. While it returns true, the
// engine begins no step and ends no request, not even a cancelled one, and asks again every
// millisecond. A step that has begun is completed first. `yields` is called on the engine's thread
// and must not call the engine.
//
// Returns INVALID_ARGUMENT if the options need more positions than the model has, if kv_cache_bytes
// does not hold one sequence of an explicit max_model_len, or if CUDA graphs are impossible.
// Without an explicit max_model_len, limits().max_generation_len is the longest sequence that can
// be generated. If the capture fails, the engine runs without graphs under CudaGraphUse::kAuto.
// Under any other use, this returns RESOURCE_EXHAUSTED if memory ran out, and INTERNAL otherwise.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeTorchEngine(
    std::shared_ptr<Decoder> decoder, const EngineOptions& options, Clock* clock = Clock::Real(),
    std::unique_ptr<GraphBackend> graphs = nullptr, std::function<bool()> yields = nullptr);

}  // namespace taopd
