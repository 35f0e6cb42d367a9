// How the sequences of a mini-batch are dealt to the ranks. No LibTorch here.
//
// The sequences 0..n-1 of a mini-batch are cut into equal neighbouring shares; each rank has
// equally many neighbouring shares. Seeds and data order are those of the sequences, so they do not
// depend on the number of ranks. Ranks generate the responses of their shares; before they train,
// shares of unequal work exchange some (trainer/step/balance/deal.h). Usually there is one share a
// rank. With dist.deterministic their number is fixed, each share's gradient is computed by itself,
// and the shares' gradients are added in a fixed tree: then neither does the result depend on the
// number of ranks, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// [begin, end) among the sequences of a mini-batch.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

class Shares {
 public:
  Shares() = default;  // one share, one rank
  // `num_shares` 0: one a rank. Returns INVALID_ARGUMENT if the ranks cannot have equally many
  // shares, a power of two each.
  static absl::StatusOr<Shares> Make(int64_t num_shares, int64_t rank, int64_t world_size);

  // The shares of this rank, of a mini-batch of so many sequences. Some are empty if there are more
  // shares than sequences.
  std::vector<SequenceRange> Mine(int64_t num_sequences) const;
  // Those of all ranks.
  std::vector<SequenceRange> All(int64_t num_sequences) const;
  // The rank that has share `index` of all.
  int64_t RankOf(int64_t index) const { return index / count_; }
  // All sequences of this rank: the shares joined.
  SequenceRange AllMine(int64_t num_sequences) const;

 private:
  SequenceRange Share(int64_t index, int64_t num_sequences) const;

  int64_t num_shares_ = 1;
  int64_t first_ = 0;  // of this rank
  int64_t count_ = 1;  // of this rank
};

}  // namespace taopd
