#include "server/structured/grammar_uses.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/fair_share.h"

namespace taopd {

absl::Status GrammarUses::Check(const std::string& client, const void* grammar) const {
  const auto found = by_client_.find(client);
  const size_t num_held = found == by_client_.end() ? 0 : found->second.size();
  if (num_held > 0 && found->second.contains(grammar)) return absl::OkStatus();
  const size_t num_after = all_.size() + (all_.contains(grammar) ? 0 : 1);
  if (num_after > max_grammars_)
    return ResourceExhausted(all_.size(), " grammars are in use, which is the limit");
  if (client.empty() || num_held == 0) return absl::OkStatus();
  if (FitsShare(static_cast<int64_t>(num_held + 1), static_cast<int64_t>(max_grammars_ - num_after),
                max_client_share_))
    return absl::OkStatus();
  return ResourceExhausted("this client uses ", num_held,
                           " grammars: one more exceeds its share of ", max_grammars_,
                           ", of which ", max_grammars_ - all_.size(), " are free");
}

absl::StatusOr<std::unique_ptr<GrammarUses::Use>> GrammarUses::Begin(const std::string& client,
                                                                     const void* grammar) {
  absl::MutexLock lock(&mutex_);
  TAOPD_RETURN_IF_ERROR(Check(client, grammar));
  Add(client, grammar);
  return std::unique_ptr<Use>(new Use(shared_from_this(), client, grammar));
}

void GrammarUses::Move(const std::string& client, const void* from, const void* to) {
  absl::MutexLock lock(&mutex_);
  Remove(client, from);
  Add(client, to);
}

void GrammarUses::End(const std::string& client, const void* grammar) {
  absl::MutexLock lock(&mutex_);
  Remove(client, grammar);
}

void GrammarUses::Add(const std::string& client, const void* grammar) {
  ++all_[grammar];
  ++by_client_[client][grammar];
}

void GrammarUses::Remove(const std::string& client, const void* grammar) {
  const auto counts = by_client_.find(client);
  TAOPD_CHECK(counts != by_client_.end());
  for (Counts* of : {&all_, &counts->second}) {
    const auto count = of->find(grammar);
    TAOPD_CHECK(count != of->end());
    if (--count->second == 0) of->erase(count);
  }
  if (counts->second.empty()) by_client_.erase(counts);
}

size_t GrammarUses::num_used() const {
  absl::MutexLock lock(&mutex_);
  return all_.size();
}

}  // namespace taopd
