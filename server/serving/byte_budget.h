// A bound on the memory that request bodies and answers of all protocols take together. It only
// counts; the memory itself belongs to whoever holds the reservation. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
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
        : budget_(std::exchange(other.budget_, nullptr)), num_bytes_(other.num_bytes_) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(num_bytes_, other.num_bytes_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->num_used_ -= num_bytes_;
    }
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class ByteBudget;
    Reservation(ByteBudget* budget, int64_t num_bytes) : budget_(budget), num_bytes_(num_bytes) {}
    ByteBudget* budget_ = nullptr;
    int64_t num_bytes_ = 0;
  };

  explicit ByteBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns an empty reservation if the bytes would exceed the bound. Never waits.
  Reservation TryReserve(int64_t num_bytes) {
    if (num_used_.fetch_add(num_bytes) + num_bytes > max_bytes_) {
      num_used_ -= num_bytes;
      ++num_refused_;
      return {};
    }
    return Reservation(this, num_bytes);
  }
  int64_t num_used() const { return num_used_; }
  int64_t max_bytes() const { return max_bytes_; }
  // Refusals since the start.
  uint64_t num_refused() const { return num_refused_; }

 private:
  const int64_t max_bytes_;
  std::atomic<int64_t> num_used_{0};
  std::atomic<uint64_t> num_refused_{0};
};

}  // namespace taopd
