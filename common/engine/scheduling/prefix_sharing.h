// Lets sequences share what they have in common: a prefix whose blocks can be found in the pool, a
// block that a running sequence is about to compute, or a whole prompt, which one running sequence,
// the leader, computes for its followers. Not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/engine/scheduling/block_pool.h"
#include "common/engine/scheduling/sequence.h"

namespace taopd {

struct CachedPrefix {
  std::vector<int32_t> blocks;
  uint64_t entry = 0;  // of the last block
};

class PrefixSharing {
 public:
  // A sequence waits for the blocks of at most this many others.
  static constexpr int kMaxWaits = 4;

  // The pool must outlive this object.
  explicit PrefixSharing(BlockPool* pool) : pool_(*pool) {}

  // Returns the longest cached prefix that the sequence could use.
  CachedPrefix Find(const Sequence& sequence) const;
  // Returns whether another sequence, which does not wait for a mask, is computing the next block
  // after the prefix. Counts how often the sequence waits.
  bool WaitsFor(Sequence* sequence, const CachedPrefix& prefix) const;
  // Returns the running sequence that computes the same prompt, or null.
  Sequence* LeaderOf(const Sequence& sequence) const;
  // Return the number of blocks that a sequence takes when it is admitted. NumNewBlocks is for one
  // that computes its prompt itself, after this prefix.
  int64_t NumBlocksToAdmit(const Sequence& sequence) const {
    return LeaderOf(sequence) != nullptr ? 1 : NumNewBlocks(sequence, Find(sequence));
  }
  int64_t NumNewBlocks(const Sequence& sequence, const CachedPrefix& prefix) const;

  // Lets a sequence that starts to run use the prefix. From now on, others may wait for its next
  // block, and follow it if it only generates.
  void Start(Sequence* sequence, const CachedPrefix& prefix);
  // Makes the blocks that the sequence has fully computed findable.
  void Publish(Sequence* sequence);
  // Gives the followers of a leader, whose prompt is complete, its blocks.
  void Fork(Sequence* leader);
  // Forgets a sequence that no longer runs. A leader's first follower takes its blocks and leads.
  void Leave(Sequence* sequence);
  // Stops a running sequence from sharing anything, because the weights change.
  void Expire(Sequence* sequence);
  // REQUIRES: Expire was called for all running sequences.
  void set_weight_version(uint64_t version) { weight_version_ = version; }
  uint64_t weight_version() const { return weight_version_; }

 private:
  PrefixKey KeyOf(const Sequence& sequence, int64_t block, uint64_t parent) const;
  // Returns how many tokens of a cached prefix the sequence could use.
  int64_t NumReusableTokens(const Sequence& sequence) const;
  // Records that others may wait for the sequence's next block, or that they may not any more.
  void Announce(Sequence* sequence);
  void Withdraw(Sequence* sequence);
  void StopLeading(const Sequence* sequence);

  BlockPool& pool_;
  // The running sequences whose prompt is not complete, which others may follow, by prompt_hash.
  std::unordered_map<uint64_t, Sequence*> leaders_;
  // The running sequences by the key of the next block that each will publish.
  std::unordered_map<PrefixKey, Sequence*, PrefixKeyHash> announced_;
  uint64_t weight_version_ = 0;
};

}  // namespace taopd
