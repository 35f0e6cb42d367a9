#include "common/engine/runner/token_draws.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "common/engine/sampling/logit_row.h"
#include "common/engine/sampling/processors.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/sampling/row_candidates.h"
#include "kernels/torch/upload.h"

namespace taopd {
namespace {

// Fewer logits than this are not worth a second thread.
constexpr int64_t kLogitsPerThread = 1 << 12;
// If the penalties, biases and lists of a row name more ids than this, the whole row is copied.
constexpr size_t kMaxNamedIds = 2048;

// Draws on the logits' device for the tasks that need only a temperature. Returns the indices of
// the other tasks.
std::vector<size_t> DrawOnDevice(const at::Tensor& logits_SV, const RowSampler& sampler,
                                 const std::vector<DrawTask>& tasks, std::vector<Draw>* draws) {
  std::vector<size_t> others, taken;
  std::vector<RowToDraw> rows;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const DrawTask& task = tasks[i];
    if (!sampler.defined() ||
        !NeedsTemperatureOnly(task.params(), task.sequence->sampling_state.get(), task.step(),
                              logits_SV.size(1))) {
      others.push_back(i);
      continue;
    }
    taken.push_back(i);
    rows.push_back(
        {task.row, task.params().temperature, UniformOfStep(task.params().seed, task.step())});
  }
  const std::vector<DrawnRow> drawn =
      rows.empty() ? std::vector<DrawnRow>() : DrawRows(logits_SV, rows, sampler);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < taken.size(); ++i) {
    const SamplingParams& params = tasks[taken[i]].params();
    Draw& draw = (*draws)[taken[i]];
    if (drawn[i].invalid) {
      draw.token = Internal("the model's logits are not finite");
      continue;
    }
    draw.token = SampledToken{drawn[i].id, params.log_probs ? drawn[i].log_prob : kNaN,
                              params.raw_log_probs ? drawn[i].raw_log_prob : kNaN, 0};
  }
  return others;
}

// Draws on the host for these tasks. row_of returns the logits of the task indices[i].
void DrawInParallel(const std::vector<DrawTask>& tasks, const std::vector<size_t>& indices,
                    int64_t logits_per_row, const std::function<LogitRow(size_t i)>& row_of,
                    std::vector<Draw>* draws) {
  const int64_t grain = std::max<int64_t>(1, kLogitsPerThread / logits_per_row);
  ParallelLoop(static_cast<int64_t>(indices.size()), grain, [&](int64_t from, int64_t to) {
    Sampler sampler;
    for (int64_t i = from; i < to; ++i) {
      const DrawTask& task = tasks[indices[i]];
      Draw& draw = (*draws)[indices[i]];
      draw.token = sampler.Sample(row_of(i), task.params(), task.sequence->sampling_state.get(),
                                  task.step());
      if (draw.token.ok()) sampler.AppendTop(&draw.top_ids, &draw.top_log_probs);
    }
  });
}

// Draws from candidates for these tasks. Returns the indices of those that need the whole row.
std::vector<size_t> DrawFromCandidates(const at::Tensor& logits_SV,
                                       const std::vector<DrawTask>& tasks,
                                       const std::vector<size_t>& indices,
                                       std::vector<Draw>* draws) {
  std::vector<size_t> others, taken;
  std::vector<RowToSummarize> rows;
  for (const size_t i : indices) {
    const DrawTask& task = tasks[i];
    const SamplingParams& params = task.params();
    std::vector<int32_t> ids = ListedIds(params, task.sequence->sampling_state.get(), task.step());
    if (params.mask != nullptr || params.top_k > kTopCandidates || ids.size() > kMaxNamedIds) {
      others.push_back(i);
      continue;
    }
    taken.push_back(i);
    rows.push_back({task.row, params.temperature, std::move(ids)});
  }
  const std::vector<RowCandidates> candidates = SummarizeRows(logits_SV, rows);
  const auto row_of = [&](size_t i) {
    const RowCandidates& summary = candidates[i];
    const int64_t rest_size = logits_SV.size(1) - static_cast<int64_t>(summary.ids.size());
    return LogitRow{summary.logits,
                    summary.ids,
                    {rest_size, summary.rest_max, summary.rest_sum, summary.raw_rest_sum,
                     summary.rest_sums_before}};
  };
  DrawInParallel(tasks, taken, kTopCandidates, row_of, draws);
  for (const size_t i : taken) {
    if (absl::IsOutOfRange((*draws)[i].token.status())) others.push_back(i);
  }
  return others;
}

// Draws on the host for these tasks. If `picks_rows` is true, only the rows that they need are
// copied there.
void DrawOnHost(const at::Tensor& logits_SV, bool picks_rows, const std::vector<DrawTask>& tasks,
                const std::vector<size_t>& indices, std::vector<Draw>* draws) {
  std::vector<int64_t> places;  // the place of each task's row on the host
  for (const size_t i : indices) places.push_back(tasks[i].row);
  at::Tensor host = logits_SV;
  if (picks_rows) {
    std::vector<int64_t> rows = places;
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    for (int64_t& place : places)
      place = std::lower_bound(rows.begin(), rows.end(), place) - rows.begin();
    if (static_cast<int64_t>(rows.size()) < logits_SV.size(0)) {
      host = host.index_select(0, Upload(at::tensor(rows, at::kLong), host.device()));
    }
  }
  host = host.cpu();
  const int64_t vocab_size = host.size(1);
  const float* const logits = host.const_data_ptr<float>();
  const auto row_of = [&](size_t i) {
    return LogitRow{std::span<const float>(logits + places[i] * vocab_size, vocab_size), {}, {}};
  };
  DrawInParallel(tasks, indices, vocab_size, row_of, draws);
}

}  // namespace

std::vector<Draw> DrawTokens(const at::Tensor& logits_SV, const RowSampler& sampler,
                             const std::vector<DrawTask>& tasks) {
  std::vector<Draw> draws(tasks.size());
  std::vector<size_t> others = DrawOnDevice(logits_SV, sampler, tasks, &draws);
  if (sampler.defined()) others = DrawFromCandidates(logits_SV, tasks, others, &draws);
  if (!others.empty()) DrawOnHost(logits_SV, sampler.defined(), tasks, others, &draws);
  return draws;
}

}  // namespace taopd
