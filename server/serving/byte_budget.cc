#include "server/serving/byte_budget.h"

#include "common/base/sharing/fair_share.h"

namespace taopd {

ByteBudget::Refusal ByteBudget::CheckLocked(int64_t num_bytes, const std::string& client) const {
  if (num_bytes > max_bytes_ - num_used_) return Refusal::kFull;
  if (client.empty()) return Refusal::kNone;
  const int64_t held = held_.Of(client);
  const int64_t taken = num_bytes + (held == 0 ? 0 : KeptFree(num_bytes, max_bytes_));
  return FitsShare(held + taken, max_bytes_ - num_used_ - taken, max_client_share_)
             ? Refusal::kNone
             : Refusal::kClientShare;
}

ByteBudget::Refusal ByteBudget::Check(int64_t num_bytes, const std::string& client) const {
  absl::MutexLock lock(&mutex_);
  return CheckLocked(num_bytes, client);
}

ByteBudget::Reservation ByteBudget::TryReserve(int64_t num_bytes, const std::string& client) {
  absl::MutexLock lock(&mutex_);
  if (const Refusal refusal = CheckLocked(num_bytes, client); refusal != Refusal::kNone) {
    ++(refusal == Refusal::kFull ? num_refused_full_ : num_refused_share_);
    return {};
  }
  num_used_ += num_bytes;
  if (!client.empty()) held_.Add(client, num_bytes);
  return Reservation(this, num_bytes, client);
}

void ByteBudget::Return(int64_t num_bytes, const std::string& client) {
  absl::MutexLock lock(&mutex_);
  num_used_ -= num_bytes;
  if (!client.empty()) held_.Add(client, -num_bytes);
}

int64_t ByteBudget::num_used() const {
  absl::MutexLock lock(&mutex_);
  return num_used_;
}

size_t ByteBudget::num_clients() const {
  absl::MutexLock lock(&mutex_);
  return held_.size();
}

uint64_t ByteBudget::num_refused(Refusal reason) const {
  absl::MutexLock lock(&mutex_);
  return reason == Refusal::kFull ? num_refused_full_ : num_refused_share_;
}

}  // namespace taopd
