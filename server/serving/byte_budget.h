// A bound on the memory that request bodies and answers of all protocols take together, and on the
// part of it that one client takes. It only counts; the memory itself belongs to whoever holds the
// reservation. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace taopd {

class ByteBudget {
 public:
  // Gives its bytes back when it is destroyed; it must not outlive the budget. False if it is
  // empty: refused, moved from, or default-constructed.
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

  // `max_client_share`: see FitsShare (common/base/fair_share.h). A client that holds some bytes
  // already leaves what KeptFree says of its share for smaller requests of its own.
  explicit ByteBudget(int64_t max_bytes, double max_client_share = 1.0)
      : max_bytes_(max_bytes), max_client_share_(max_client_share) {}

  // Returns an empty reservation if the bytes would exceed the bound or the client's share of it.
  // The empty name has no share: it may take everything. Never waits.
  Reservation TryReserve(int64_t num_bytes, const std::string& client = "");
  // What TryReserve would say.
  Refusal Check(int64_t num_bytes, const std::string& client) const;

  int64_t num_used() const;
  int64_t max_bytes() const { return max_bytes_; }
  // That hold any bytes.
  size_t num_clients() const;
  // Refusals of TryReserve since the start, for this reason.
  uint64_t num_refused(Refusal reason) const;

 private:
  Refusal CheckLocked(int64_t num_bytes, const std::string& client) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Return(int64_t num_bytes, const std::string& client);

  const int64_t max_bytes_;
  const double max_client_share_;
  mutable absl::Mutex mutex_;
  int64_t num_used_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the clients that hold any.
  std::unordered_map<std::string, int64_t> held_ ABSL_GUARDED_BY(mutex_);
  uint64_t num_refused_full_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_refused_share_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace taopd
