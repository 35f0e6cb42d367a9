// Feeds sequences to Decoder::Infer step by step, each with its own blocks.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "common/model/decoder.h"

namespace taopd::testing {

class PagedSteps {
 public:
  // The sequences' blocks are taken alternately from the end and the beginning of the pool, so that
  // tables are not in order.
  PagedSteps(Decoder* decoder, int64_t num_blocks,
             KvPages::Layout layout = KvPages::Layout::kKernel)
      : decoder_(decoder),
        pages_(decoder->config(), num_blocks, decoder->dtype(), decoder->device(), layout),
        last_(static_cast<int32_t>(num_blocks) - 1) {}

  struct Part {
    size_t sequence;
    std::vector<int32_t> ids;  // follow the ids fed before
  };
  // Returns the hidden states of the parts' rows, one after the other.
  at::Tensor Step(const std::vector<Part>& parts) {
    const c10::InferenceMode inference;
    std::vector<std::vector<int32_t>> ids;
    PagedBatch batch;
    int64_t row = 0;
    for (const Part& part : parts) {
      State& state = states_[part.sequence];
      const auto num = static_cast<int64_t>(part.ids.size());
      while (static_cast<int64_t>(state.table.size()) * kBlockTokens < state.length + num) {
        state.table.push_back(state.table.size() % 2 == 0 ? last_-- : first_++);
      }
      batch.sequences.push_back({row, num, state.length, state.table.data()});
      state.length += num;
      row += num;
      ids.push_back(part.ids);
    }
    batch.token_ids_T = PackedBatch::FromSequences(ids, decoder_->device()).token_ids_T;
    return decoder_->Infer(batch, &pages_);
  }
  int64_t length(size_t sequence) { return states_[sequence].length; }
  KvPages& pages() { return pages_; }

 private:
  struct State {
    std::vector<int32_t> table;
    int64_t length = 0;
  };
  Decoder* decoder_;
  KvPages pages_;
  std::map<size_t, State> states_;
  int32_t first_ = 0;
  int32_t last_;
};

}  // namespace taopd::testing
