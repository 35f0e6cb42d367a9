#include "server/http/front/work_turns.h"

#include <utility>

#include "common/base/fair_share.h"

namespace taopd {

void WorkTurns::Add(uint64_t id, const std::string& client) {
  clients_[client].waiting.emplace_back(next_arrival_++, id);
}

std::optional<uint64_t> WorkTurns::Next() {
  if (num_free_ == 0) return std::nullopt;
  const auto turn = [](const Client& client) {
    return std::pair(client.num_workers, client.waiting.front().first);
  };
  auto next = clients_.end();
  for (auto item = clients_.begin(); item != clients_.end(); ++item) {
    const Client& client = item->second;
    if (client.waiting.empty()) continue;
    if (client.num_workers > 0 &&
        !FitsShare(client.num_workers + 1, num_free_ - 1, max_client_share_))
      continue;
    if (next == clients_.end() || turn(client) < turn(next->second)) next = item;
  }
  if (next == clients_.end()) return std::nullopt;
  const uint64_t id = next->second.waiting.front().second;
  next->second.waiting.pop_front();
  ++next->second.num_workers;
  --num_free_;
  holders_.emplace(id, next->first);
  return id;
}

void WorkTurns::End(uint64_t id) {
  const auto holder = holders_.find(id);
  if (holder == holders_.end()) return;
  const auto client = clients_.find(holder->second);
  holders_.erase(holder);
  ++num_free_;
  if (--client->second.num_workers == 0 && client->second.waiting.empty()) clients_.erase(client);
}

}  // namespace taopd
