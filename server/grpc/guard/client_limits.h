// Limits a client's use of the gRPC library: the bytes that its connections hold, and the rate at
// which it resets streams. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/serving/byte_budget.h"

namespace taopd {

// Accounts for the bytes that one connection holds in the gRPC library. They are reserved from the
// budget of all messages in large pieces, so that small calls do not touch a lock that connections
// share.
class MemoryAccount {
 public:
  // The bytes that a connection may hold without a reservation.
  static constexpr int64_t kFreeBytes = 64 << 10;
  static constexpr int64_t kPieceBytes = 256 << 10;

  // `budget` must outlive the account. `client` is the name for ByteBudget::TryReserve.
  MemoryAccount(ByteBudget* budget, std::string client)
      : budget_(budget), client_(std::move(client)) {}

  // Adds bytes, or removes some if the number is negative. Returns false, and adds nothing, if the
  // budget or the client's share of it is used up.
  bool Add(int64_t num_bytes) {
    const int64_t wanted = num_bytes_ + num_bytes;
    while (wanted > CoveredBytes()) {
      ByteBudget::Reservation piece = budget_->TryReserve(kPieceBytes, client_);
      if (!piece) return false;
      pieces_.push_back(std::move(piece));
    }
    num_bytes_ = wanted;
    // One piece more than needed is kept, so that the number can vary around a boundary.
    while (!pieces_.empty() && num_bytes_ + kPieceBytes <= CoveredBytes() - kPieceBytes) {
      pieces_.pop_back();
    }
    if (num_bytes_ == 0) pieces_.clear();
    return true;
  }

 private:
  int64_t CoveredBytes() const {
    return kFreeBytes + kPieceBytes * static_cast<int64_t>(pieces_.size());
  }

  ByteBudget* const budget_;
  const std::string client_;
  int64_t num_bytes_ = 0;
  std::vector<ByteBudget::Reservation> pieces_;
};

// Limits how often one client resets streams. gRPC 1.51 frees a reset stream (28 KiB) only much
// later, so a client that opens and resets streams as fast as it can would fill the memory without
// ever exceeding the limit of open streams.
class ResetRate {
 public:
  // Enough for all calls of a few connections, when a program is stopped.
  static constexpr double kBurst = 4096;
  static constexpr double kPerSecond = 512;

  // Counts one reset. Returns false if there were too many.
  bool Take(absl::Time now) {
    num_taken_ = std::max(0.0, num_taken_ - kPerSecond * absl::ToDoubleSeconds(now - counted_at_));
    counted_at_ = now;
    if (num_taken_ >= kBurst) return false;
    num_taken_ += 1;
    return true;
  }
  // Returns whether all counted resets have expired.
  bool HasExpired(absl::Time now) const {
    return num_taken_ <= kPerSecond * absl::ToDoubleSeconds(now - counted_at_);
  }

 private:
  double num_taken_ = 0;
  absl::Time counted_at_ = absl::UnixEpoch();
};

}  // namespace taopd
