// The gradients of objectives without a dense part, which have k + 1 entries per row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"

namespace taopd::cuda {

inline constexpr int kSparseThreads = 256;

// Computes d_hidden[n] = sum_j value_j lm_head[id_j], in the order of the entries, with one block
// per row.
template <typename Element>
__global__ void __launch_bounds__(kSparseThreads)
    SparseDHidden(const int32_t* ids, const float* values, int32_t entries_per_row,
                  const Element* lm_head, int64_t lm_head_stride, int64_t vocab_size,
                  int64_t hidden_size, Element* d_hidden) {
  const int64_t n = blockIdx.x;
  for (int64_t h = threadIdx.x; h < hidden_size; h += kSparseThreads) {
    float sum = 0;
    for (int32_t j = 0; j < entries_per_row; ++j) {
      const int32_t id = ids[n * entries_per_row + j];
      if (id < 0 || id >= vocab_size) continue;
      sum += values[n * entries_per_row + j] * Load(lm_head + id * lm_head_stride + h);
    }
    Store(sum, d_hidden + n * hidden_size + h);
  }
}

// Computes d_lm_head[id] += the sum of value hidden[row] over the entries of the id. The entries
// are sorted by id, and by row within an id. There is one block per entry; the block of an id's
// first entry does the work for all of them, and the others return immediately.
//
// An id may be in the support of every row. The block therefore reads as many entries as it has
// threads at a time, and a thread sums several columns, so that many reads of hidden are in flight.
// The order of a column's sum depends on neither.
template <typename Element>
__global__ void __launch_bounds__(kSparseThreads)
    SparseDLmHead(const uint32_t* sorted_ids, const int32_t* sorted_entries, const float* values,
                  int64_t num_entries, int32_t entries_per_row, const Element* hidden,
                  int64_t hidden_stride, int64_t vocab_size, int64_t hidden_size,
                  float* d_lm_head) {
  constexpr int kColumns = 8;  // of a thread
  __shared__ int32_t rows[kSparseThreads];
  __shared__ float row_values[kSparseThreads];
  const int64_t first = blockIdx.x;
  const uint32_t id = sorted_ids[first];
  if (id >= static_cast<uint64_t>(vocab_size)) return;  // no entry
  if (first > 0 && sorted_ids[first - 1] == id) return;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t begin = 0; begin < hidden_size; begin += kSparseThreads * kColumns) {
    // Column c of the thread is begin + thread + c * kSparseThreads.
    const int64_t num_columns = hidden_size - begin - thread;
    float sums[kColumns] = {};
    int num_read = kSparseThreads;
    for (int64_t i = first; num_read == kSparseThreads; i += kSparseThreads) {
      const int64_t place = i + thread;
      const bool has_entry = place < num_entries && sorted_ids[place] == id;
      if (has_entry) {
        const int32_t entry = sorted_entries[place];
        rows[thread] = entry / entries_per_row;
        row_values[thread] = values[entry];
      }
      num_read = __syncthreads_count(has_entry);
      for (int j = 0; j < num_read; ++j) {
        const Element* row = hidden + rows[j] * hidden_stride + begin + thread;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (c * kSparseThreads < num_columns) {
            sums[c] += row_values[j] * Load(row + c * kSparseThreads);
          }
        }
      }
      __syncthreads();  // until all have read the rows
    }
    float* const total = d_lm_head + id * hidden_size + begin + thread;
    for (int c = 0; c < kColumns; ++c) {
      if (c * kSparseThreads < num_columns) total[c * kSparseThreads] += sums[c];
    }
  }
}

// keys[i] = the id of entry i, or the largest number if there is no entry; entries[i] = i.
__global__ void MakeSortKeys(const int32_t* ids, int64_t num_entries, int64_t vocab_size,
                             uint32_t* keys, int32_t* entries) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_entries) return;
  const bool valid = ids[i] >= 0 && ids[i] < vocab_size;
  keys[i] = valid ? static_cast<uint32_t>(ids[i]) : 0xffffffffu;
  entries[i] = static_cast<int32_t>(i);
}

}  // namespace taopd::cuda
