// How much each client address holds of what all share. A client is an IPv4 address, or the first
// half of an IPv6 address, which is what one subscriber has. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace taopd {

class ClientTable {
 public:
  struct Client {
    int num_connections = 0;
    int64_t num_bytes = 0;  // of its requests, from their arrival until they are answered
  };

  const Client& Find(const std::string& key) const {
    static const Client kNone;
    const auto found = clients_.find(key);
    return found == clients_.end() ? kNone : found->second;
  }
  void Add(const std::string& key, int num_connections, int64_t num_bytes) {
    Client& client = clients_[key];
    client.num_connections += num_connections;
    client.num_bytes += num_bytes;
    if (client.num_connections == 0 && client.num_bytes == 0) clients_.erase(key);
  }

 private:
  std::unordered_map<std::string, Client> clients_;
};

}  // namespace taopd
