// Records how many slots (of the sequences that generate at once) and blocks each client holds, and
// chooses the sequence to preempt when another one finds no room. A client that is alone may hold
// all of them; the limits on preemption apply while there are several. The object is a snapshot of
// the running sequences, built for one decision. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "common/engine/scheduling/block_pool.h"
#include "common/engine/scheduling/sequence.h"

namespace taopd {

class ClientShares {
 public:
  enum class Resource {
    kSlots,  // of the sequences that generate at once
    kBlocks,
  };

  // Limits what a sequence may take from others when it is admitted.
  enum class PreemptionLimit {
    kNothing,
    kShare,  // what its client lacks compared with the client that holds the most
    kAll,
  };

  // The sequence `oldest` is never preempted. The pool must outlive this object.
  ClientShares(const BlockPool& pool, RequestHandle oldest) : pool_(pool), oldest_(oldest) {}

  // Adds a running sequence that uses the pool. Call it in the order of admission.
  void Add(Sequence* sequence);
  // Counts what a sequence will hold when it is admitted. RemoveVictim is for the sequence that was
  // counted last.
  void AddRequest(const Sequence& sequence, int64_t num_blocks);

  // Removes and returns the sequence to preempt for the requesting one, or null if there is none.
  // It is a sequence of the client that holds the most of the resource, the newest one that would
  // free any of it. It is never `leader`, whose prompt the requesting sequence shares.
  // With kShare, it belongs to another client, which keeps at least one sequence and at least as
  // much of the resource as the requesting client then has.
  Sequence* RemoveVictim(Resource resource, PreemptionLimit limit, const Sequence* leader);
  // Returns whether another client holds at least as many blocks as the requesting one.
  bool OtherHoldsAsMuch() const;
  // Returns the sequence to preempt so that the running sequence `requester` can grow: the newest
  // one of the client that holds the most blocks, or `requester`.
  Sequence* VictimForGrowth(Sequence* requester) const;

  // Returns the blocks that become free if the sequence is preempted: those that no other sequence
  // holds, including blocks that are only reserved for it.
  int64_t NumFreedBlocks(const Sequence& sequence) const;

 private:
  struct Holding {
    int64_t num_slots = 0;
    int64_t num_blocks = 0;            // including reserved blocks
    std::vector<Sequence*> sequences;  // in the order of admission

    int64_t Amount(Resource resource) const {
      return resource == Resource::kSlots ? num_slots : num_blocks;
    }
  };

  int64_t NumHeldBlocks(const Sequence& sequence) const;
  // Returns how much of the resource the preemption of `sequence` frees. With kAll, all blocks that
  // it holds count as freed, otherwise only those that no other sequence holds.
  int64_t FreedAmount(const Sequence& sequence, Resource resource, PreemptionLimit limit) const;

  const BlockPool& pool_;
  const RequestHandle oldest_;
  std::map<std::string_view, Holding> holdings_;  // by client
  const Holding* own_ = nullptr;                  // of the requesting client
};

}  // namespace taopd
