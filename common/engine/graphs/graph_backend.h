// Records what a function does on the device, and does it again: the seam between the engine's
// decode steps (decode_graphs.h) and CUDA graphs (cuda_graph_backend.h).
//
// A record refers to memory by address, and holds the arguments that were passed by value when it
// was made. So the function must not allocate what outlives it, must not wait for the device, and
// must take whatever differs from call to call from memory that stays where it is.
//
// Not thread-safe: one thread at a time.
#pragma once

#include <functional>
#include <memory>

namespace taopd {

class RecordedStep {
 public:
  virtual ~RecordedStep() = default;
  // Does on the device what the function did, after everything that the device was given before.
  // Does not wait for it. Throws c10::Error.
  virtual void Replay() = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;
  // Begins a set of records, whose scratch memory is shared: no two of them may run at once.
  // REQUIRES: the records of earlier sets have been destroyed.
  virtual void BeginSet() = 0;
  // Calls `step`, perhaps more than once, and records it. Throws c10::Error if it cannot be
  // recorded; other records stay usable. REQUIRES: between BeginSet and EndSet.
  virtual std::unique_ptr<RecordedStep> Record(const std::function<void()>& step) = 0;
  // Gives back what recording took and the records do not need.
  virtual void EndSet() = 0;
};

}  // namespace taopd
