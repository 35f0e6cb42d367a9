// Counts the connections of each subscriber (server/net/client_name.h). Not thread-safe.
#pragma once

#include <string>
#include <unordered_map>

namespace taopd {

class ClientTable {
 public:
  int NumConnections(const std::string& subscriber) const {
    const auto found = num_connections_.find(subscriber);
    return found == num_connections_.end() ? 0 : found->second;
  }
  void Add(const std::string& subscriber, int num_connections) {
    int& count = num_connections_[subscriber];
    count += num_connections;
    if (count == 0) num_connections_.erase(subscriber);
  }

 private:
  std::unordered_map<std::string, int> num_connections_;
};

}  // namespace taopd
