// Executes a step on the model: packs the rows, runs the decoder, scores and samples. Owns the
// pages of keys and values.
//
// Threads: only the engine's thread uses it.
//
// Shapes: T rows of the step, S rows that sample, H hidden size, V vocabulary size.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/graphs/decode_graphs.h"
#include "common/engine/scheduling/scheduler.h"
#include "common/model/decoder.h"

namespace taopd {

class ModelRunner {
 public:
  // The time of all steps so far, by the clock.
  struct Times {
    absl::Duration layers;
    absl::Duration head;
  };

  // The pool has num_blocks blocks. `graphs` may be null; its scratch block is the first one after
  // the pool. The clock must outlive the object.
  ModelRunner(std::shared_ptr<Decoder> decoder, int64_t num_blocks, int64_t head_workspace_bytes,
              std::unique_ptr<DecodeGraphs> graphs, Clock* clock)
      : decoder_(std::move(decoder)),
        num_blocks_(num_blocks),
        head_workspace_bytes_(head_workspace_bytes),
        graphs_(std::move(graphs)),
        clock_(clock) {}

  // Allocates the pages and records the graphs, if there are any, so that no request has to wait
  // for that. Another thread may call it before the engine's thread starts. LibTorch's exceptions
  // pass through.
  void CaptureGraphs();
  // Lets all later steps run eagerly.
  void DropGraphs() { graphs_ = nullptr; }

  // Makes the plan's copies, computes its rows, and appends scores and sampled tokens to their
  // sequences. A sequence whose mask is late (LogitMask::IsReady) sits out: it gets no token in
  // this step. progress() is called after each layer, but not in a replay.
  //
  // A sequence gets an error in Sequence::status if it cannot be computed, if its own logits are
  // not finite, or if its masks forbid every token; the other sequences continue. Returns OK if the
  // device still answers, and otherwise the error with which it failed.
  absl::Status Run(const StepPlan& plan, const std::function<void()>& progress);

  // Frees the memory of the pages and of the graphs. Both are made again when they are needed.
  // REQUIRES: no sequence has keys or values in the pages.
  void ReleasePages();

  GraphStats graph_stats() const { return graphs_ != nullptr ? graphs_->stats() : GraphStats(); }
  const Times& times() const { return times_; }

 private:
  using Progress = std::function<void()>;

  KvPages& pages();
  // Returns whether the model's processes and its device still compute.
  bool ModelAnswers();
  absl::Status Copy(const std::vector<BlockCopy>& copies);
  // Computes rows of a plan. An exception in the forward pass leaves the sequences unchanged.
  absl::Status Compute(const std::vector<ScheduledRows>& rows, bool uncached,
                       const Progress& progress);
  absl::Status ComputeAlone(const StepPlan& plan, const absl::Status& failure,
                            const Progress& progress);
  // Computes the rows' keys and values and returns their hidden states, [T, H]. It may be called
  // again with the same rows, or with some of them, after an exception. The next call may overwrite
  // the result.
  at::Tensor Forward(const std::vector<ScheduledRows>& rows, bool uncached,
                     const Progress& progress);
  void ScoreAndSample(const std::vector<ScheduledRows>& rows, const at::Tensor& hidden_TH);
  // The sequences that sample from one row.
  struct SampledRow {
    int64_t row;  // index in hidden_TH
    std::vector<Sequence*> sequences;
  };
  void Score(const std::vector<ScheduledRows>& rows, const at::Tensor& hidden_TH);
  void Sample(const std::vector<SampledRow>& rows, const at::Tensor& hidden_TH);
  void SampleFrom(const at::Tensor& logits_SV, const SampledRow* rows, absl::Time masks_until);

  const std::shared_ptr<Decoder> decoder_;
  const int64_t num_blocks_;
  const int64_t head_workspace_bytes_;
  // Allocated on first use, so that an engine that computes without the pool does not pay for it.
  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<DecodeGraphs> graphs_;  // refers to pages_
  Clock* const clock_;
  Times times_;
};

}  // namespace taopd
