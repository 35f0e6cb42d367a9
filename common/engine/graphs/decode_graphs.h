// Decode steps as CUDA graphs: launching the few hundred kernels of a step costs the host more than
// computing them costs the device if the step is small. A step of one row for each of its sequences
// is recorded once for each of some batch sizes, and replayed with other rows. A batch is padded up
// to the next size with rows that write to a block that no sequence has, and whose hidden states
// nobody reads. Other steps - with prompts, of more sequences, of longer ones - run eagerly. So do
// scores and sampling, which follow the layers.
//
// Records read the weights and the pages where they lie, so values that are written in place are
// seen. If any of them has moved, the whole set is recorded again before it is used.
//
// Threads: as ModelRunner. All calls are under InferenceMode.
//
// Shapes: T rows of the step, H hidden size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/graphs/graph_backend.h"
#include "common/engine/scheduling/scheduler.h"
#include "common/model/decoder.h"
#include "common/model/layers/decode_inputs.h"

namespace taopd {

class DecodeGraphs {
 public:
  struct Options {
    std::vector<int64_t> sizes;  // CaptureSizes (common/memory/cuda_graphs.h)
    int64_t max_seq_len = 0;     // of the sequences of a step, with the row that it computes
    int64_t max_model_len = 0;   // of all sequences that the engine computes
    int32_t scratch_block = 0;   // of the pages, for padding rows alone
  };

  DecodeGraphs(std::shared_ptr<Decoder> decoder, std::unique_ptr<GraphBackend> backend,
               const Options& options);
  ~DecodeGraphs();

  // Records all sizes, the largest first: the smaller ones find room in its scratch memory. Calls
  // progress(), which may be empty, after each. Throws c10::Error; there are no graphs then.
  void Capture(KvPages* pages, const std::function<void()>& progress);
  // Destroys the records and gives their memory back.
  void Drop();

  // Computes a step as Decoder::Infer does. Returns the rows' hidden states, [T, H], which the next
  // call overwrites, or an undefined tensor if the step is none that is recorded. If the set has to
  // be recorded again and cannot be, logs that and runs eagerly from then on.
  at::Tensor Run(const std::vector<ScheduledRows>& rows, KvPages* pages,
                 const std::function<void()>& progress);

  GraphStats stats() const;

 private:
  struct Graph {
    std::unique_ptr<DecodeInputs> inputs;
    std::unique_ptr<RecordedStep> step;
  };
  // The size that the step is padded to; 0 if it must run eagerly.
  int64_t SizeFor(const std::vector<ScheduledRows>& rows) const;
  void CaptureSize(int64_t size, KvPages* pages);
  // Row i of those that pad a batch.
  DecodeRow PaddingRow(int64_t i) const;
  // Everything that the records read and that does not belong to this object.
  std::vector<const void*> Addresses(const KvPages& pages) const;
  bool CaptureAgain(KvPages* pages, const std::function<void()>& progress);

  const std::shared_ptr<Decoder> decoder_;
  const std::unique_ptr<GraphBackend> backend_;
  const Options options_;
  const std::vector<int32_t> scratch_table_;
  at::Tensor hidden_TH_;                // what all records write, of the largest size
  std::map<int64_t, Graph> graphs_;     // by size
  std::vector<const void*> addresses_;  // when they were recorded
  bool failed_ = false;
  GraphStats stats_;
};

// The graphs of an engine of these options and limits, whose pool has num_blocks blocks; the one
// behind them is the scratch block. `backend` records them; null means CUDA graphs. Returns
// INVALID_ARGUMENT if there can be none (CheckCudaGraphs). REQUIRES: options.cuda_graphs.enabled.
absl::StatusOr<std::unique_ptr<DecodeGraphs>> MakeDecodeGraphs(
    const std::shared_ptr<Decoder>& decoder, const EngineOptions& options,
    const EngineLimits& limits, int64_t num_blocks, std::unique_ptr<GraphBackend> backend);

}  // namespace taopd
