// Counts what each client holds of something: connections, bytes. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "common/base/check.h"

namespace taopd {

class ClientAmounts {
 public:
  int64_t Of(const std::string& client) const {
    const auto found = amounts_.find(client);
    return found == amounts_.end() ? 0 : found->second;
  }
  // REQUIRES: the client then holds at least 0.
  void Add(const std::string& client, int64_t amount) {
    const auto entry = amounts_.try_emplace(client, 0).first;
    entry->second += amount;
    TAOPD_CHECK(entry->second >= 0);
    // Clients that hold nothing have no entry, because clients come and go.
    if (entry->second == 0) amounts_.erase(entry);
  }
  // Returns the number of clients that hold anything.
  size_t size() const { return amounts_.size(); }

 private:
  std::unordered_map<std::string, int64_t> amounts_;
};

}  // namespace taopd
