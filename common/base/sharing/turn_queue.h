// Jobs of clients that share a bounded number of turns. The next turn goes to the client that has
// the fewest jobs running; among equals, to the one with the fewest jobs begun so far; then to the
// job that came first. So a client that sends many jobs waits for its own, and a client's first job
// waits for at most one job of each other client.
//
// A client that already has a turn gets another one only within its share of the turns (FitsShare,
// fair_share.h). A new client starts with the lowest count among the clients that have
// jobs. A client is forgotten when its last job is done. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/sharing/fair_share.h"

namespace taopd {

template <typename Job>
class TurnQueue {
 public:
  explicit TurnQueue(int64_t num_turns, double max_client_share = 1.0)
      : num_free_(num_turns), max_client_share_(max_client_share) {}

  // Returns the number of waiting jobs of all clients, and of one.
  size_t size() const { return num_waiting_; }
  size_t SizeOf(const std::string& client) const {
    const auto found = clients_.find(client);
    return found == clients_.end() ? 0 : found->second.waiting.size();
  }

  // Returns the number of clients with waiting or running jobs.
  size_t num_clients() const { return clients_.size(); }

  void Push(const std::string& client, Job job) {
    uint64_t lowest = clients_.empty() ? 0 : UINT64_MAX;
    for (const auto& [name, other] : clients_) lowest = std::min(lowest, other.num_begun);
    Client& entry = clients_.try_emplace(client, Client{.num_begun = lowest}).first->second;
    entry.waiting.emplace_back(next_arrival_++, std::move(job));
    ++num_waiting_;
  }

  // Begins the next job, or returns nullopt if no waiting client may have a turn. Call Done with
  // the client when the job is done.
  std::optional<Job> Next() {
    if (num_free_ == 0) return std::nullopt;
    Client* next = nullptr;
    for (auto& [name, client] : clients_) {
      if (client.waiting.empty()) continue;
      if (client.num_running > 0 &&
          !FitsShare(client.num_running + 1, num_free_ - 1, max_client_share_))
        continue;
      if (next == nullptr || client.Rank() < next->Rank()) next = &client;
    }
    if (next == nullptr) return std::nullopt;
    Job job = std::move(next->waiting.front().second);
    next->waiting.pop_front();
    ++next->num_running;
    ++next->num_begun;
    --num_waiting_;
    --num_free_;
    return job;
  }

  // Removes and returns the waiting jobs of all clients.
  std::vector<Job> TakeWaiting() {
    std::vector<Job> jobs;
    for (auto& [name, client] : clients_) {
      for (auto& [arrival, job] : std::exchange(client.waiting, {})) jobs.push_back(std::move(job));
    }
    num_waiting_ = 0;
    std::erase_if(clients_, [](const auto& client) { return client.second.num_running == 0; });
    return jobs;
  }

  void Done(const std::string& client) {
    const auto found = clients_.find(client);
    TAOPD_CHECK(found != clients_.end() && found->second.num_running > 0);
    ++num_free_;
    if (--found->second.num_running == 0 && found->second.waiting.empty()) clients_.erase(found);
  }

 private:
  struct Client {
    // The client with the smallest rank has the next turn. REQUIRES: it has a waiting job.
    std::tuple<int64_t, uint64_t, uint64_t> Rank() const {
      return {num_running, num_begun, waiting.front().first};
    }

    uint64_t num_begun = 0;
    int64_t num_running = 0;
    std::deque<std::pair<uint64_t, Job>> waiting = {};  // each with its number of arrival
  };

  int64_t num_free_;
  const double max_client_share_;
  std::unordered_map<std::string, Client> clients_;  // those with waiting or running jobs
  size_t num_waiting_ = 0;
  uint64_t next_arrival_ = 0;
};

}  // namespace taopd
