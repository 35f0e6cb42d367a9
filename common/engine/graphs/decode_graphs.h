// Runs decode steps as CUDA graphs. In a small step, launching the few hundred kernels costs the
// host more time than the device needs to compute them. A step with one row per sequence is
// recorded once for each of several batch sizes and replayed with other rows. A batch is padded to
// the next size with rows that write to a block that no sequence has; their hidden states are
// ignored. Other steps (with prompts, more sequences or longer ones) run eagerly, and so do scores
// and sampling, which follow the layers.
//
// A record reads the weights and the pages at their addresses, so it sees what is written there
// later. If any of this memory has moved, the whole set is recorded again before its next use.
//
// Threads: the rules of ModelRunner apply. All calls must be under InferenceMode.
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
    int64_t max_seq_len = 0;     // limit for the sequences of a step, including the computed row
    int64_t max_model_len = 0;   // limit for all sequences of the engine
    int32_t scratch_block = 0;   // a block of the pages only for padding rows
  };

  DecodeGraphs(std::shared_ptr<Decoder> decoder, std::unique_ptr<GraphBackend> backend,
               const Options& options);
  ~DecodeGraphs();

  // Records all sizes, the largest first, so that its scratch memory also holds the smaller ones.
  // Calls progress(), which may be empty, after each. Throws c10::Error, after which there are no
  // graphs.
  void Capture(KvPages* pages, const std::function<void()>& progress);
  // Destroys the records and frees their memory.
  void Drop();

  // Computes a step as Decoder::Infer does. Returns the rows' hidden states, [T, H], which the next
  // call overwrites, or an undefined tensor if no record fits the step. If the set must be recorded
  // again and that fails, logs the failure; all later steps run eagerly.
  at::Tensor Run(const std::vector<ScheduledRows>& rows, KvPages* pages,
                 const std::function<void()>& progress);

  GraphStats stats() const;

 private:
  struct Graph {
    std::unique_ptr<DecodeInputs> inputs;
    std::unique_ptr<RecordedStep> step;
  };
  // Returns the size to which the step is padded, or 0 if it must run eagerly.
  int64_t SizeFor(const std::vector<ScheduledRows>& rows) const;
  void CaptureSize(int64_t size, KvPages* pages);
  // Returns padding row i of a batch.
  DecodeRow PaddingRow(int64_t i) const;
  // Returns the addresses of all memory that the records read outside of this object.
  std::vector<const void*> Addresses(const KvPages& pages) const;
  bool CaptureAgain(KvPages* pages, const std::function<void()>& progress);

  const std::shared_ptr<Decoder> decoder_;
  const std::unique_ptr<GraphBackend> backend_;
  const Options options_;
  const std::vector<int32_t> scratch_table_;
  at::Tensor hidden_TH_;                // the output of all records, of the largest size
  std::map<int64_t, Graph> graphs_;     // by size
  std::vector<const void*> addresses_;  // Addresses() when they were recorded
  bool failed_ = false;
  GraphStats stats_;
};

// Makes the graphs of an engine with these options and limits, whose pool has num_blocks blocks;
// block num_blocks is the scratch block. `backend` records them; null means CUDA graphs. Returns
// null if decode steps are not captured, and the errors of UsesCudaGraphs.
absl::StatusOr<std::unique_ptr<DecodeGraphs>> MakeDecodeGraphs(
    const std::shared_ptr<Decoder>& decoder, const EngineOptions& options,
    const EngineLimits& limits, int64_t num_blocks, std::unique_ptr<GraphBackend> backend);

}  // namespace taopd
