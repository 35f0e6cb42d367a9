// Sequences of random queries, keys and values, run through paged attention step by step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/attention/paged_attention.h"
#include "tests/kernels/attention_problem.h"

namespace taopd::testing {

// A layer, and the lengths of a batch's sequences.
struct AttentionCase : AttentionShape {
  std::vector<int64_t> lengths = {100};
};

// Returns the rows of each sequence, exact in the type of the case.
inline std::vector<std::vector<float>> RandomRows(const AttentionCase& c, uint64_t seed) {
  std::vector<std::vector<float>> rows;
  for (const Stored& sequence : RandomSequences(c, c.lengths, seed)) {
    rows.push_back(sequence.Values());
  }
  return rows;
}

// Runs a loop on threads with uneven ranges, of which some threads get several and others none.
inline ParallelFor UnevenThreads(int num_threads) {
  return [num_threads](int64_t num, int64_t, const std::function<void(int64_t, int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([=, &body] {
        int64_t begin = 0;
        for (int64_t i = 0; begin < num; ++i) {
          const int64_t end = std::min(num, begin + 1 + i % 3);
          if ((i * 7 + i / 3) % num_threads == t) body(begin, end);
          begin = end;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

// The pool, the block tables and the outputs so far of a case's sequences.
class AttentionBatch {
 public:
  // `seed` determines the order of the blocks. The pool is filled with NaN, in float32 with the one
  // whose bits are the largest int32_t, because loops may compute with the bits of numbers that no
  // row sees.
  AttentionBatch(const AttentionCase& c, std::vector<std::vector<float>> rows, uint64_t seed,
                 cpu::InstructionSet set)
      : case_(c), rows_(std::move(rows)), set_(set), past_(c.lengths.size()) {
    int64_t num_blocks = 0;
    for (int64_t length : c.lengths) num_blocks += (length + kBlockTokens - 1) / kBlockTokens;
    std::vector<int32_t> order(num_blocks + 3);  // a few blocks have no owner
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(order.begin(), order.end(), random);
    const int64_t block_bytes = BytesPerBlock(c.dtype, c.num_kv_heads, c.head_size);
    pool_.assign(order.size() * block_bytes, static_cast<char>(0xff));
    for (size_t i = 3; i < pool_.size(); i += 4) pool_[i] = 0x7f;
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      const int64_t num = (c.lengths[s] + kBlockTokens - 1) / kBlockTokens;
      tables_.emplace_back(order.end() - num, order.end());
      tables_.back().push_back(-100'000'000);  // must not be looked up
      order.resize(order.size() - num);
      outputs_.emplace_back(c.lengths[s] * c.num_heads * c.head_size * SizeOf(c.dtype));
    }
  }

  // Appends and attends the next num_rows[s] rows of each sequence s in one batch.
  void Step(const std::vector<int64_t>& num_rows, const ParallelFor& parallel_for) {
    std::vector<PagedSequence> sequences;
    std::vector<float> batch(5, NAN);  // rows need be neither aligned nor contiguous
    const int64_t stride = case_.RowSize() + 3;
    int64_t first_row = 0;
    for (size_t s = 0; s < num_rows.size(); ++s) {
      if (num_rows[s] == 0 && s % 2 == 0) continue;  // the others are in the batch without a row
      sequences.push_back({first_row, num_rows[s], past_[s], tables_[s].data()});
      for (int64_t i = 0; i < num_rows[s]; ++i) {
        const float* const row = rows_[s].data() + (past_[s] + i) * case_.RowSize();
        batch.insert(batch.end(), row, row + case_.RowSize());
        batch.insert(batch.end(), 3, NAN);
      }
      first_row += num_rows[s];
    }
    const std::vector<uint8_t> bytes = StoreAs(case_.dtype, batch).bytes;
    const auto at = [&](int64_t column) {
      return bytes.data() + (5 + column) * SizeOf(case_.dtype);
    };
    const KeyValuePool pool = {case_.dtype, case_.num_kv_heads, case_.head_size, pool_.data()};
    const auto num_sequences = static_cast<int64_t>(sequences.size());
    cpu::AppendKeysAndValues(
        AppendKeysValues{pool, sequences.data(), num_sequences, at(case_.KeyColumn()), stride,
                         at(case_.ValueColumn()), stride},
        parallel_for, set_);
    const int64_t out_size = case_.num_heads * case_.head_size;
    const int64_t out_stride = out_size + 2;
    std::vector<uint8_t> out(first_row * out_stride * SizeOf(case_.dtype), 0x55);
    cpu::AttendToPages(
        PagedAttention{pool, sequences.data(), num_sequences, case_.num_heads, case_.scale,
                       case_.sliding_window, at(0), stride, out.data(), out_stride},
        parallel_for, set_);
    const uint8_t* from = out.data();
    for (size_t s = 0; s < num_rows.size(); ++s) {
      for (int64_t i = 0; i < num_rows[s]; ++i, from += out_stride * SizeOf(case_.dtype)) {
        const int64_t bytes_per_row = out_size * SizeOf(case_.dtype);
        std::memcpy(outputs_[s].data() + past_[s]++ * bytes_per_row, from, bytes_per_row);
        for (int64_t j = 0; j < 2 * SizeOf(case_.dtype); ++j) {
          written_beyond_row_ |= from[bytes_per_row + j] != 0x55;
        }
      }
    }
  }

  // Runs steps of at most `chunk` rows per sequence until all rows are done.
  void StepInChunks(int64_t chunk, const ParallelFor& parallel_for) {
    for (;;) {
      std::vector<int64_t> num_rows;
      for (size_t s = 0; s < past_.size(); ++s) {
        num_rows.push_back(std::min(chunk, case_.lengths[s] - past_[s]));
      }
      if (*std::max_element(num_rows.begin(), num_rows.end()) == 0) return;
      Step(num_rows, parallel_for);
    }
  }

  // Returns [length][N][D], as far as it has been computed.
  const std::vector<uint8_t>& BytesOf(size_t sequence) const { return outputs_[sequence]; }
  std::vector<float> ValuesOf(size_t sequence) const {
    return Stored{case_.dtype, outputs_[sequence]}.Values();
  }
  bool written_beyond_row() const { return written_beyond_row_; }

 private:
  AttentionCase case_;
  std::vector<std::vector<float>> rows_;
  const cpu::InstructionSet set_;
  std::vector<int64_t> past_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<char> pool_;
  std::vector<std::vector<uint8_t>> outputs_;
  bool written_beyond_row_ = false;
};

}  // namespace taopd::testing
