// The division of a mini-batch's sequences among the ranks. It does not depend on LibTorch.
//
// The sequences 0..n-1 of a mini-batch are divided into consecutive shares of equal size, and each
// rank has the same number of consecutive shares. Seeds and data order belong to the sequences, so
// they do not depend on the number of ranks. Each rank generates the responses of its shares.
// Before training, shares of unequal work exchange sequences (trainer/step/balance/partition.h).
// Usually there is one share per rank. With dist.deterministic the number of shares is fixed, each
// share's gradient is computed by itself, and the gradients are added in a fixed tree, so the
// result is the same bit for bit for any number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The range [begin, end) of a mini-batch's sequences.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

class Shares {
 public:
  Shares() = default;  // one share, one rank
  // If `num_shares` is 0, there is one share per rank. Returns INVALID_ARGUMENT unless every rank
  // can have the same number of shares, a power of two.
  static absl::StatusOr<Shares> Make(int64_t num_shares, int64_t rank, int64_t world_size);

  // Returns the number of shares of each rank.
  int64_t num_per_rank() const { return num_per_rank_; }
  // Returns the shares of all ranks of a mini-batch of `num_sequences`. Some are empty if there are
  // more shares than sequences.
  std::vector<SequenceRange> All(int64_t num_sequences) const;
  // Returns the rank of share `index` of All().
  int64_t RankOf(int64_t index) const { return index / num_per_rank_; }
  // Returns all sequences of this rank: its shares joined.
  SequenceRange OwnRange(int64_t num_sequences) const;

 private:
  SequenceRange Share(int64_t index, int64_t num_sequences) const {
    return {num_sequences * index / num_shares_, num_sequences * (index + 1) / num_shares_};
  }

  int64_t num_shares_ = 1;
  int64_t first_share_ = 0;  // of this rank
  int64_t num_per_rank_ = 1;
};

}  // namespace taopd
