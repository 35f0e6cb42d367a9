// Accounts for the bytes that one connection holds in the gRPC library. They are reserved from the
// budget of all messages in large pieces, so that small calls do not touch a lock that connections
// share. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/serving/byte_budget.h"

namespace taopd {

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
    while (wanted > Covered()) {
      ByteBudget::Reservation piece = budget_->TryReserve(kPieceBytes, client_);
      if (!piece) return false;
      pieces_.push_back(std::move(piece));
    }
    num_bytes_ = wanted;
    // One piece more than needed is kept, so that the number can vary around a boundary.
    while (!pieces_.empty() && num_bytes_ + kPieceBytes <= Covered() - kPieceBytes) {
      pieces_.pop_back();
    }
    if (num_bytes_ == 0) pieces_.clear();
    return true;
  }

  int64_t num_bytes() const { return num_bytes_; }

 private:
  int64_t Covered() const {
    return kFreeBytes + kPieceBytes * static_cast<int64_t>(pieces_.size());
  }

  ByteBudget* const budget_;
  const std::string client_;
  int64_t num_bytes_ = 0;
  std::vector<ByteBudget::Reservation> pieces_;
};

}  // namespace taopd
