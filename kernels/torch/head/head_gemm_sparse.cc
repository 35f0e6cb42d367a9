#include "kernels/torch/head/head_gemm_sparse.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

// to[H] += factor * row `index` of a float32 or bfloat16 matrix.
void AddRow(const at::Tensor& matrix, int64_t index, float factor, float* to) {
  const cpu::PanelGemm& math = cpu::BestPanelGemm();
  const int64_t size = matrix.size(1);
  if (matrix.scalar_type() == at::kBFloat16) {
    const auto* row = matrix.const_data_ptr<at::BFloat16>() + index * size;
    math.add_scaled_bf16(reinterpret_cast<const cpu::Bfloat16Bits*>(row), factor, size, to);
  } else {
    math.add_scaled(matrix.const_data_ptr<float>() + index * size, factor, size, to);
  }
}

struct Entry {
  int32_t id;
  int32_t row;
  float gradient;
};

}  // namespace

// Adding a single row costs as much memory traffic as 8 rows in a matrix product.
bool SparseBackwardIsCheaper(int64_t k, int64_t vocab_size) { return (k + 1) * 8 <= vocab_size; }

at::Tensor CpuHeadBackwardSparse(const cpu::LogitEntries& d_logits, const at::Tensor& hidden_CH,
                                 const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH) {
  const int64_t num_rows = d_logits.num_rows;
  const int64_t h = lm_head_VH.size(1);
  const at::Tensor weights_VH = lm_head_VH.contiguous();
  const at::Tensor hidden = hidden_CH.contiguous();

  // The entries are ordered by row, and within a row by the support's order, with the sampled token
  // last.
  std::vector<Entry> entries;
  std::vector<int64_t> first_of_row;
  for (int64_t n = 0; n < num_rows; ++n) {
    first_of_row.push_back(static_cast<int64_t>(entries.size()));
    for (int64_t i = n * d_logits.per_row; i < (n + 1) * d_logits.per_row; ++i) {
      if (d_logits.ids_CE[i] < 0 || d_logits.values_CE[i] == 0) continue;
      entries.push_back({d_logits.ids_CE[i], static_cast<int32_t>(n), d_logits.values_CE[i]});
    }
  }
  first_of_row.push_back(static_cast<int64_t>(entries.size()));

  at::Tensor d_hidden_CH = at::zeros({num_rows, h}, at::kFloat);
  float* d_hidden = d_hidden_CH.mutable_data_ptr<float>();
  ParallelLoop(num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = first_of_row[begin]; i < first_of_row[end]; ++i) {
      AddRow(weights_VH, entries[i].id, entries[i].gradient, d_hidden + entries[i].row * h);
    }
  });
  if (!d_lm_head_VH.defined()) return d_hidden_CH;

  // Sorts by id: each row of d_lm_head belongs to one thread, and its sum runs over ascending rows.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.id < b.id; });
  float* d_lm_head = d_lm_head_VH.mutable_data_ptr<float>();
  const auto num_entries = static_cast<int64_t>(entries.size());
  const auto start_of_id = [&](int64_t i) {
    while (i > 0 && i < num_entries && entries[i].id == entries[i - 1].id) ++i;
    return i;
  };
  ParallelLoop(num_entries, 64, [&](int64_t begin, int64_t end) {
    const int64_t last = start_of_id(end);
    for (int64_t i = start_of_id(begin); i < last; ++i) {
      AddRow(hidden, entries[i].row, entries[i].gradient, d_lm_head + entries[i].id * h);
    }
  });
  return d_hidden_CH;
}

}  // namespace taopd
