#include "common/engine/scheduling/prefix_sharing.h"

#include <algorithm>
#include <utility>

namespace taopd {

int64_t PrefixSharing::NumReusableTokens(const Sequence& sequence) const {
  const int64_t num_tokens = sequence.num_rows_needed() - 1;
  const bool unscored =
      sequence.scores() && sequence.next_scored_row < sequence.num_prompt_tokens() - 1;
  return unscored ? std::min(num_tokens, sequence.next_scored_row) : num_tokens;
}

PrefixKey PrefixSharing::KeyOf(const Sequence& sequence, int64_t block, uint64_t parent) const {
  PrefixKey key;
  key.parent = parent;
  if (block == 0) {
    key.weight_version = weight_version_;
    key.salt = sequence.request.cache_salt;
  }
  key.token_ids.reserve(pool_.block_tokens());
  for (int64_t i = block * pool_.block_tokens(); i < (block + 1) * pool_.block_tokens(); ++i)
    key.token_ids.push_back(sequence.token(i));
  return key;
}

CachedPrefix PrefixSharing::Find(const Sequence& sequence) const {
  CachedPrefix prefix;
  if (!pool_.prefix_caching()) return prefix;
  const int64_t num_blocks = NumReusableTokens(sequence) / pool_.block_tokens();
  for (int64_t block = 0; block < num_blocks; ++block) {
    const auto found = pool_.Find(KeyOf(sequence, block, prefix.entry));
    if (!found) break;
    prefix.blocks.push_back(found->block);
    prefix.entry = found->entry;
  }
  return prefix;
}

bool PrefixSharing::WaitsFor(Sequence* sequence, const CachedPrefix& prefix) const {
  if (!pool_.prefix_caching()) return false;
  const int64_t next = static_cast<int64_t>(prefix.blocks.size());
  if ((next + 1) * pool_.block_tokens() > NumReusableTokens(*sequence)) return false;
  const auto found = announced_.find(KeyOf(*sequence, next, prefix.entry));
  if (found == announced_.end() || found->second->WaitsForMask()) return false;
  Sequence::Scheduling& scheduling = sequence->scheduling;
  if (scheduling.waited_for != found->second->handle) {
    scheduling.waited_for = found->second->handle;
    ++scheduling.num_waits;
  }
  return scheduling.num_waits <= kMaxWaits;
}

Sequence* PrefixSharing::LeaderOf(const Sequence& sequence) const {
  const auto found = leaders_.find(sequence.scheduling.prompt_hash);
  if (found == leaders_.end()) return nullptr;
  Sequence* const leader = found->second;
  const bool joinable =
      !leader->scheduling.published.stale && leader->status.ok() && SharesPrompt(*leader, sequence);
  return joinable ? leader : nullptr;
}

int64_t PrefixSharing::NumNewBlocks(const Sequence& sequence, const CachedPrefix& prefix) const {
  return pool_.NumBlocksFor(sequence.num_rows_needed()) -
         std::count_if(prefix.blocks.begin(), prefix.blocks.end(),
                       [&](int32_t block) { return pool_.num_references(block) > 0; });
}

void PrefixSharing::Start(Sequence* sequence, const CachedPrefix& prefix) {
  const int64_t num_blocks = static_cast<int64_t>(prefix.blocks.size());
  for (int32_t block : prefix.blocks) pool_.AddReference(block);
  sequence->blocks = prefix.blocks;
  sequence->num_computed = num_blocks * pool_.block_tokens();
  sequence->scheduling.published = {num_blocks, prefix.entry};
  Announce(sequence);
  if (SharesPrompt(*sequence, *sequence)) leaders_[sequence->scheduling.prompt_hash] = sequence;
}

void PrefixSharing::Publish(Sequence* sequence) {
  auto& [num_blocks, entry, stale] = sequence->scheduling.published;
  if (!pool_.prefix_caching() || stale) return;
  Withdraw(sequence);
  const int64_t num_full = sequence->num_computed / pool_.block_tokens();
  for (; num_blocks < num_full; ++num_blocks)
    entry = pool_.Publish(sequence->blocks[num_blocks], KeyOf(*sequence, num_blocks, entry));
  Announce(sequence);
}

void PrefixSharing::Announce(Sequence* sequence) {
  const auto& [num_blocks, entry, stale] = sequence->scheduling.published;
  if (!pool_.prefix_caching() || stale) return;
  if ((num_blocks + 1) * pool_.block_tokens() > sequence->num_rows_needed()) return;
  sequence->scheduling.announced =
      announced_.emplace(KeyOf(*sequence, num_blocks, entry), sequence).second;
}

void PrefixSharing::Withdraw(Sequence* sequence) {
  if (!std::exchange(sequence->scheduling.announced, false)) return;
  const auto& [num_blocks, entry, stale] = sequence->scheduling.published;
  announced_.erase(KeyOf(*sequence, num_blocks, entry));
}

void PrefixSharing::Expire(Sequence* sequence) {
  Withdraw(sequence);
  sequence->scheduling.published.stale = true;
}

void PrefixSharing::Fork(Sequence* leader) {
  for (Sequence* follower : std::exchange(leader->scheduling.followers, {})) {
    follower->blocks = leader->blocks;
    for (int32_t block : follower->blocks) pool_.AddReference(block);
    follower->num_computed = std::min(leader->num_computed, follower->num_tokens() - 1);
    follower->scheduling.leader = nullptr;
    follower->scheduling.published = leader->scheduling.published;
  }
  StopLeading(leader);
}

void PrefixSharing::StopLeading(const Sequence* sequence) {
  const auto found = leaders_.find(sequence->scheduling.prompt_hash);
  if (found != leaders_.end() && found->second == sequence) leaders_.erase(found);
}

void PrefixSharing::Leave(Sequence* sequence) {
  Sequence::Scheduling& scheduling = sequence->scheduling;
  if (scheduling.leader != nullptr) {
    std::erase(scheduling.leader->scheduling.followers, sequence);
    scheduling.leader = nullptr;
  }
  Withdraw(sequence);
  StopLeading(sequence);
  std::vector<Sequence*> followers = std::exchange(scheduling.followers, {});
  if (followers.empty()) return;
  Sequence* const new_leader = followers.front();
  followers.erase(followers.begin());
  for (Sequence* follower : followers) follower->scheduling.leader = new_leader;
  new_leader->scheduling.leader = nullptr;
  new_leader->scheduling.followers = std::move(followers);
  new_leader->scheduling.published = scheduling.published;
  new_leader->blocks = std::exchange(sequence->blocks, {});
  new_leader->num_computed = sequence->num_computed;
  leaders_[scheduling.prompt_hash] = new_leader;
  Announce(new_leader);
}

}  // namespace taopd
