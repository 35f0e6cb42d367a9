// The sequences that do not run (new or preempted), and the order in which they get their turns.
//
// Clients take turns by the number of tokens that have been served to them. The client with the
// fewest goes first. Ties go to a client that has nothing running, and then to the one whose oldest
// sequence here arrived first. Within a client, preempted sequences come first, then the others in
// the order of arrival. (Sheng et al., "Fairness in serving large language models", OSDI 2024, call
// these numbers virtual token counters.)
//
// A client that starts to have work begins with the lowest count of the clients that have work, or
// its own if that is higher. Every admission is charged, so the lowest count rises, and others can
// overtake a waiting sequence only for a bounded number of tokens.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/engine/scheduling/queue_limits.h"
#include "common/engine/scheduling/sequence.h"

namespace taopd {

class WaitingQueue {
 public:
  // REQUIRES: handles grow from call to call.
  void Add(std::unique_ptr<Sequence> sequence);
  // Puts a preempted sequence back. REQUIRES: Remove was called for it, and End was not.
  void Return(std::unique_ptr<Sequence> sequence);
  // Takes a sequence out. Its client counts as having work until End is called.
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);
  // Records that one sequence of this client is done or dropped.
  void End(const std::string& client);
  // Records that the client has been served this many tokens.
  void Charge(const std::string& client, int64_t num_tokens);

  // Returns the sequence whose turn it is among those that use the pool, or null. It was preempted,
  // or it only scores (if `scores`) or generates (if `generations`). A client with preempted
  // sequences starts no new generation.
  Sequence* Next(bool scores, bool generations) const;
  // Skips the sequence that Next returned until the next round begins, and, if `and_later`, also
  // the later sequences of its client and kind.
  void Skip(const Sequence& sequence, bool and_later = false);
  void BeginRound() { ++round_; }
  // Returns the sequence whose turn it is among those that run without the pool, or null. With
  // `accepts`, these include the first new sequence of each client and kind that it accepts.
  Sequence* NextUncached(const std::function<bool(const Sequence&)>& accepts = nullptr) const;
  // Returns the first `max_count` of the sequences that only generate and have the same prompt,
  // client and salt as `leader`, in the order of arrival.
  std::vector<Sequence*> WithPromptOf(const Sequence& leader, int64_t max_count) const;

  // Returns the new sequences of a client, with the tokens of their prompts.
  QueueLoad WaitingOf(const std::string& client) const;

  int64_t size() const { return size_; }  // new ones
  int64_t num_preempted() const { return num_preempted_; }
  int64_t num_uncached() const { return num_uncached_; }
  // The number of clients with waiting or admitted work, and of those with waiting work.
  size_t num_active_clients() const { return active_served_.size(); }
  size_t num_waiting_clients() const { return turns_.size(); }
  // Returns whether this client has a sequence here.
  bool Has(const std::string& client) const;
  int64_t num_tokens() const { return num_tokens_; }  // of the prompts
  // Returns all sequences, the preempted ones last, in the order of clients' names and, within a
  // client and a kind of work, of arrival.
  std::vector<Sequence*> All() const;

 private:
  using Queue = std::map<RequestHandle, std::unique_ptr<Sequence>>;  // in the order of arrival
  using Turn = std::tuple<int64_t, bool, RequestHandle>;

  // The sequences up to `last_skipped` were skipped or admitted in round `round`.
  struct Lane {
    Sequence* First(uint64_t present_round) const;

    Queue queue;
    RequestHandle last_skipped = 0;
    uint64_t round = 0;
  };

  struct Client {
    int64_t served = 0;         // tokens
    int64_t num_sequences = 0;  // waiting or admitted
    QueueLoad waiting;
    Lane scores;  // sequences that only score
    Lane generations;
    Lane uncached;  // sequences that only score and run without the pool
    Lane preempted;
    // The key in turns_, if anything is here: tokens served, whether anything runs, and the oldest
    // sequence here.
    Turn turn = {0, false, 0};
  };

  static Lane& LaneOf(Client* client, const Sequence& sequence);
  static bool IsPreempted(const Sequence& sequence) {
    return sequence.scheduling.state == Sequence::Scheduling::State::kPreempted;
  }
  void UpdateTurn(Client* client);
  // Forgets idle clients whose count would not matter any more.
  void ForgetIdleClients();

  std::map<std::string, Client> clients_;
  std::map<Turn, Client*> turns_;
  std::multiset<int64_t> active_served_;  // the counts of the clients that have work
  // Sequences that only generate, by the hash of their prompt.
  std::unordered_map<uint64_t, std::map<RequestHandle, Sequence*>> prompts_;
  size_t forget_at_ = 64;  // number of clients
  uint64_t round_ = 1;
  RequestHandle last_handle_ = 0;
  int64_t size_ = 0;
  int64_t num_preempted_ = 0;
  int64_t num_uncached_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace taopd
