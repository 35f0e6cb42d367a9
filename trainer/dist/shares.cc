#include "trainer/dist/shares.h"

#include <bit>

namespace taopd {

absl::StatusOr<Shares> Shares::Make(int64_t num_shares, int64_t rank, int64_t world_size) {
  if (num_shares == 0) num_shares = world_size;
  const int64_t count = num_shares / world_size;
  if (num_shares % world_size != 0 || !std::has_single_bit(static_cast<uint64_t>(count))) {
    return InvalidArgument("dist.deterministic: ", world_size,
                           " ranks cannot divide dist.shares = ", num_shares,
                           " among them so that each has 1, 2, 4, ... of them");
  }
  Shares shares;
  shares.num_shares_ = num_shares;
  shares.first_share_ = rank * count;
  shares.num_per_rank_ = count;
  return shares;
}

std::vector<SequenceRange> Shares::All(int64_t num_sequences) const {
  std::vector<SequenceRange> shares;
  for (int64_t i = 0; i < num_shares_; ++i) shares.push_back(Share(i, num_sequences));
  return shares;
}

SequenceRange Shares::OwnRange(int64_t num_sequences) const {
  return {Share(first_share_, num_sequences).begin,
          Share(first_share_ + num_per_rank_ - 1, num_sequences).end};
}

}  // namespace taopd
