// A limit for the memory of request bodies and answers of all protocols together, and for the part
// of one client. It only counts; the holder of a reservation owns the memory itself. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/base/sharing/fair_share.h"
#include "server/serving/client_amounts.h"

namespace taopd {

class ByteBudget {
 public:
  // Returns its bytes to the budget when it is destroyed; it must not outlive the budget. Converts
  // to false if it is empty: refused, moved from, or default-constructed.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          num_bytes_(other.num_bytes_),
          client_(std::move(other.client_)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(num_bytes_, other.num_bytes_);
      std::swap(client_, other.client_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->Return(num_bytes_, client_);
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class ByteBudget;
    Reservation(ByteBudget* budget, int64_t num_bytes, const std::string& client)
        : budget_(budget), num_bytes_(num_bytes), client_(client) {}
    ByteBudget* budget_ = nullptr;
    int64_t num_bytes_ = 0;
    std::string client_;
  };

  enum class Refusal {
    kNone,
    kFull,
    kClientShare,  // there is room, but not for this client
  };

  // FitsShare (fair_share.h) explains `max_client_share`. A client that already holds some bytes
  // must leave the part of its share that KeptFree keeps for its own smaller requests.
  explicit ByteBudget(int64_t max_bytes, double max_client_share = 1.0)
      : max_bytes_(max_bytes), max_client_share_(max_client_share) {}

  // Returns an empty reservation if the bytes would exceed the limit or the client's share of it. A
  // client with an empty name may take everything. Never waits.
  Reservation TryReserve(int64_t num_bytes, const std::string& client = "") {
    absl::MutexLock lock(&mutex_);
    if (const Refusal refusal = CheckLocked(num_bytes, client); refusal != Refusal::kNone) {
      ++(refusal == Refusal::kFull ? num_refused_full_ : num_refused_share_);
      return {};
    }
    num_used_ += num_bytes;
    if (!client.empty()) held_.Add(client, num_bytes);
    return Reservation(this, num_bytes, client);
  }
  // Returns the refusal that TryReserve would give.
  Refusal Check(int64_t num_bytes, const std::string& client) const {
    absl::MutexLock lock(&mutex_);
    return CheckLocked(num_bytes, client);
  }

  int64_t num_used() const {
    absl::MutexLock lock(&mutex_);
    return num_used_;
  }
  int64_t max_bytes() const { return max_bytes_; }
  // Returns the number of clients that hold any bytes.
  size_t num_clients() const {
    absl::MutexLock lock(&mutex_);
    return held_.size();
  }
  // Returns the number of TryReserve's refusals for this reason since the start.
  uint64_t num_refused(Refusal reason) const {
    absl::MutexLock lock(&mutex_);
    return reason == Refusal::kFull ? num_refused_full_ : num_refused_share_;
  }

 private:
  Refusal CheckLocked(int64_t num_bytes, const std::string& client) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (num_bytes > max_bytes_ - num_used_) return Refusal::kFull;
    if (client.empty()) return Refusal::kNone;
    const int64_t held = held_.Of(client);
    const int64_t taken = num_bytes + (held == 0 ? 0 : KeptFree(num_bytes, max_bytes_));
    return FitsShare(held + taken, max_bytes_ - num_used_ - taken, max_client_share_)
               ? Refusal::kNone
               : Refusal::kClientShare;
  }
  void Return(int64_t num_bytes, const std::string& client) {
    absl::MutexLock lock(&mutex_);
    num_used_ -= num_bytes;
    if (!client.empty()) held_.Add(client, -num_bytes);
  }

  const int64_t max_bytes_;
  const double max_client_share_;
  mutable absl::Mutex mutex_;
  int64_t num_used_ ABSL_GUARDED_BY(mutex_) = 0;
  ClientAmounts held_ ABSL_GUARDED_BY(mutex_);
  uint64_t num_refused_full_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_refused_share_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace taopd
