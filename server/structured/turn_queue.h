// A queue of jobs in which clients take turns. The next job belongs to the client with the fewest
// jobs taken so far; ties go to the job that came first. So a client that sends many jobs waits for
// its own, and a client's first job waits for at most one job of each other client.
//
// A client that comes anew starts with the lowest count among the clients that have jobs. It is
// forgotten when its last job is done. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"

namespace taopd {

template <typename Job>
class TurnQueue {
 public:
  // Waiting jobs of all clients, and of one.
  size_t size() const { return waiting_.size(); }
  size_t SizeOf(const std::string& client) const {
    const auto found = clients_.find(client);
    return found == clients_.end() ? 0 : found->second.num_waiting;
  }

  // Clients with waiting or running jobs.
  size_t num_clients() const { return clients_.size(); }

  void Push(const std::string& client, Job job) {
    uint64_t lowest = clients_.empty() ? 0 : UINT64_MAX;
    for (const auto& [name, other] : clients_) lowest = std::min(lowest, other.num_taken);
    Client& entry = clients_.try_emplace(client, Client{.num_taken = lowest}).first->second;
    ++entry.num_waiting;
    waiting_.emplace_back(client, std::move(job));
  }

  // REQUIRES: size() > 0. Call Done with the client when the job is done.
  Job Take() {
    TAOPD_CHECK(!waiting_.empty());
    const auto next =
        std::min_element(waiting_.begin(), waiting_.end(), [this](const auto& a, const auto& b) {
          return clients_.at(a.first).num_taken < clients_.at(b.first).num_taken;
        });
    Client& client = clients_.at(next->first);
    --client.num_waiting;
    ++client.num_running;
    ++client.num_taken;
    Job job = std::move(next->second);
    waiting_.erase(next);
    return job;
  }
  void Done(const std::string& client) {
    const auto found = clients_.find(client);
    TAOPD_CHECK(found != clients_.end() && found->second.num_running > 0);
    --found->second.num_running;
    if (found->second.num_running + found->second.num_waiting == 0) clients_.erase(found);
  }

 private:
  struct Client {
    uint64_t num_taken = 0;
    size_t num_waiting = 0;
    size_t num_running = 0;
  };

  std::deque<std::pair<std::string, Job>> waiting_;  // in the order of arrival
  std::unordered_map<std::string, Client> clients_;  // those with waiting or running jobs
};

}  // namespace taopd
