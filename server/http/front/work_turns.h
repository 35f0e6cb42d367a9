// Decides which of the complete requests a bounded number of workers answer next, so that one
// client with many connections does not hold all workers. Clients take turns by the number of
// workers that they hold, and none holds more than its share (common/base/fair_share.h). Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace taopd {

class WorkTurns {
 public:
  WorkTurns(int num_workers, double max_client_share)
      : num_free_(num_workers), max_client_share_(max_client_share) {}

  // Adds a request of the client that waits for a worker. REQUIRES: the id is new.
  void Add(uint64_t id, const std::string& client);
  // Returns the next request for a worker, which it then holds, or nullopt if no worker is free for
  // the waiting clients. The request belongs to the client with the fewest workers; ties go to the
  // client that has waited for the longest time. A client without a worker always gets a free one.
  std::optional<uint64_t> Next();
  // Records that the request has been answered. Ids that hold no worker are ignored.
  void End(uint64_t id);

  size_t num_clients() const { return clients_.size(); }

 private:
  struct Client {
    int64_t num_workers = 0;
    std::deque<std::pair<uint64_t, uint64_t>> waiting;  // arrival and id
  };

  int64_t num_free_;
  const double max_client_share_;
  std::map<std::string, Client> clients_;  // clients that wait or hold workers
  std::unordered_map<uint64_t, std::string> holders_;
  uint64_t next_arrival_ = 0;
};

}  // namespace taopd
