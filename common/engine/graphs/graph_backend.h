// Records a function's work on the device and replays it: the interface between the engine's decode
// steps (decode_graphs.h) and CUDA graphs (cuda_graph_backend.cc).
//
// A record refers to memory by address and keeps the arguments that were passed by value when it
// was made. So the function must not allocate memory that outlives it, must not wait for the
// device, and must read everything that differs between calls from memory at fixed addresses.
//
// Not thread-safe: one thread at a time.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "common/base/status.h"

namespace taopd {

class RecordedStep {
 public:
  virtual ~RecordedStep() = default;
  // Queues the function's work on the device after all earlier work. Does not wait for it. Throws
  // c10::Error.
  virtual void Replay() = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;
  // Begins a set of records that share scratch memory, so no two of them may run at once. REQUIRES:
  // the records of earlier sets have been destroyed.
  virtual void BeginSet() = 0;
  // Calls `step`, possibly more than once, and records it. Throws c10::Error if it cannot be
  // recorded; other records stay usable. REQUIRES: between BeginSet and EndSet.
  virtual std::unique_ptr<RecordedStep> Record(const std::function<void()>& step) = 0;
  // Frees the memory that recording used and the records do not need.
  virtual void EndSet() = 0;
};

// Records CUDA graphs with at::cuda::CUDAGraph. Returns INVALID_ARGUMENT for a device that is not
// CUDA, and UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<std::unique_ptr<GraphBackend>> MakeCudaGraphBackend(c10::Device device);

}  // namespace taopd
