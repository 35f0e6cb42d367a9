// Summarizes rows of logits on their device, so that a host can sample from them without copying
// them: the logits of candidates, and sums over all other ids, which are called the rest. The
// candidates of a row are the ids of its largest logits and those that the caller names.
//
// A composition of LibTorch operations, for tensors of any device. 24 bytes for each candidate come
// to the host: 12 KB for each row without named ids.
//
// Shapes: S rows of logits, V vocabulary, N candidates of a row.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace taopd {

// Rows have this many candidates, or all ids if they are fewer, besides those that are named.
inline constexpr int64_t kTopCandidates = 512;

struct RowToSummarize {
  int64_t row = 0;           // row of the logits; several summaries may share one
  float temperature = 1;     // 0 counts as 1
  std::vector<int32_t> ids;  // further candidates, in any order; may repeat
};

struct RowCandidates {
  std::vector<int32_t> ids;   // [N], ascending
  std::vector<float> logits;  // [N]; if the row has a NaN or +inf, one is among them
  float rest_max = -std::numeric_limits<float>::infinity();  // largest logit of the rest
  // Sums of exp((logit - rest_max) / temperature) over the rest, and under temperature 1. 0 if
  // rest_max is -inf.
  double rest_sum = 0, raw_rest_sum = 0;
  std::vector<double> rest_sums_before;  // [N], the part of rest_sum whose ids are below ids[n]
};

// Returns the summaries in the order of `rows`. Waits for the device once. All summaries name as
// many ids as the one with the most: the others name id 0 in addition. logits is float32. Throws
// c10::Error if the device fails. Any thread may call it.
std::vector<RowCandidates> SummarizeRows(const at::Tensor& logits_SV,
                                         const std::vector<RowToSummarize>& rows);

}  // namespace taopd
