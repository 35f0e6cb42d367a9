#include "common/engine/scheduling/waiting_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace taopd {

Sequence* WaitingQueue::Lane::First(uint64_t present_round) const {
  const auto first = round == present_round ? queue.upper_bound(last_skipped) : queue.begin();
  return first == queue.end() ? nullptr : first->second.get();
}

WaitingQueue::Lane& WaitingQueue::LaneOf(Client* client, const Sequence& sequence) {
  if (IsPreempted(sequence)) return client->preempted;
  if (sequence.scheduling.uncached) return client->uncached;
  return sequence.generates() ? client->generations : client->scores;
}

void WaitingQueue::Add(std::unique_ptr<Sequence> sequence) {
  const RequestHandle handle = sequence->handle;
  TAOPD_CHECK_LT(last_handle_, handle);
  last_handle_ = handle;
  if (clients_.size() >= forget_at_) ForgetIdleClients();
  Client& client = clients_[sequence->request.client];
  if (client.num_sequences++ == 0) {
    if (!active_served_.empty()) client.served = std::max(client.served, *active_served_.begin());
    active_served_.insert(client.served);
  }
  ++size_;
  ++client.waiting.num_requests;
  client.waiting.num_tokens += sequence->num_prompt_tokens();
  num_uncached_ += sequence->scheduling.uncached;
  num_tokens_ += sequence->num_prompt_tokens();
  if (sequence->generates() && !sequence->scores())
    prompts_[sequence->scheduling.prompt_hash].emplace(handle, sequence.get());
  LaneOf(&client, *sequence).queue.emplace(handle, std::move(sequence));
  UpdateTurn(&client);
}

void WaitingQueue::Return(std::unique_ptr<Sequence> sequence) {
  TAOPD_CHECK(IsPreempted(*sequence));
  Client& client = clients_.at(sequence->request.client);
  ++num_preempted_;
  client.preempted.queue.emplace(sequence->handle, std::move(sequence));
  UpdateTurn(&client);
}

std::unique_ptr<Sequence> WaitingQueue::Remove(const Sequence& sequence) {
  const RequestHandle handle = sequence.handle;
  Client& client = clients_.at(sequence.request.client);
  Queue& queue = LaneOf(&client, sequence).queue;
  const auto position = queue.find(handle);
  TAOPD_CHECK(position != queue.end());
  std::unique_ptr<Sequence> owned = std::move(position->second);
  queue.erase(position);
  if (IsPreempted(sequence)) {
    --num_preempted_;
    UpdateTurn(&client);
    return owned;
  }
  --size_;
  --client.waiting.num_requests;
  client.waiting.num_tokens -= owned->num_prompt_tokens();
  num_uncached_ -= owned->scheduling.uncached;
  num_tokens_ -= owned->num_prompt_tokens();
  if (const auto found = prompts_.find(owned->scheduling.prompt_hash); found != prompts_.end()) {
    found->second.erase(handle);
    if (found->second.empty()) prompts_.erase(found);
  }
  UpdateTurn(&client);
  return owned;
}

void WaitingQueue::End(const std::string& client_name) {
  Client& client = clients_.at(client_name);
  TAOPD_CHECK_GT(client.num_sequences, 0);
  if (--client.num_sequences > 0) return UpdateTurn(&client);
  active_served_.erase(active_served_.find(client.served));
  if (active_served_.empty()) clients_.clear();  // all clients are equal again
}

void WaitingQueue::Charge(const std::string& client_name, int64_t num_tokens) {
  Client& client = clients_.at(client_name);
  TAOPD_CHECK_GT(client.num_sequences, 0);
  active_served_.erase(active_served_.find(client.served));
  client.served += num_tokens;
  active_served_.insert(client.served);
  UpdateTurn(&client);
}

Sequence* WaitingQueue::Next(bool scores, bool generations) const {
  for (const auto& [turn, client] : turns_) {
    if (Sequence* preempted = client->preempted.First(round_)) return preempted;
    const bool may_generate = generations && client->preempted.queue.empty();
    Sequence* score = scores ? client->scores.First(round_) : nullptr;
    Sequence* generation = may_generate ? client->generations.First(round_) : nullptr;
    if (score == nullptr && generation == nullptr) continue;
    if (score == nullptr || generation == nullptr) return score != nullptr ? score : generation;
    return score->handle < generation->handle ? score : generation;
  }
  return nullptr;
}

void WaitingQueue::Skip(const Sequence& sequence, bool and_later) {
  Lane& lane = LaneOf(&clients_.at(sequence.request.client), sequence);
  lane.last_skipped = and_later ? last_handle_ : sequence.handle;
  lane.round = round_;
}

Sequence* WaitingQueue::NextUncached(const std::function<bool(const Sequence&)>& accepts) const {
  if (num_uncached_ == 0 && !accepts) return nullptr;
  for (const auto& [turn, client] : turns_) {
    Sequence* oldest = nullptr;
    for (const Lane* lane : {&client->uncached, &client->scores, &client->generations}) {
      if (lane->queue.empty()) continue;
      Sequence* const first = lane->queue.begin()->second.get();
      const bool accepted = first->scheduling.uncached || (accepts && accepts(*first));
      if (accepted && (oldest == nullptr || first->handle < oldest->handle)) oldest = first;
    }
    if (oldest != nullptr) return oldest;
  }
  return nullptr;
}

bool WaitingQueue::Has(const std::string& client) const {
  const auto found = clients_.find(client);
  return found != clients_.end() && std::get<RequestHandle>(found->second.turn) != 0;
}

std::vector<Sequence*> WaitingQueue::WithPromptOf(const Sequence& leader, int64_t max_count) const {
  std::vector<Sequence*> sequences;
  const auto found = prompts_.find(leader.scheduling.prompt_hash);
  if (found == prompts_.end()) return sequences;
  for (const auto& [handle, sequence] : found->second) {
    if (static_cast<int64_t>(sequences.size()) >= max_count) break;
    if (SharesPrompt(leader, *sequence)) sequences.push_back(sequence);
  }
  return sequences;
}

QueueLoad WaitingQueue::WaitingOf(const std::string& client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? QueueLoad() : found->second.waiting;
}

std::vector<Sequence*> WaitingQueue::All() const {
  std::vector<Sequence*> sequences;
  for (const auto& [name, client] : clients_) {
    for (const Lane* lane : {&client.scores, &client.generations, &client.uncached}) {
      for (const auto& [handle, sequence] : lane->queue) sequences.push_back(sequence.get());
    }
  }
  for (const auto& [name, client] : clients_) {
    for (const auto& [handle, sequence] : client.preempted.queue)
      sequences.push_back(sequence.get());
  }
  return sequences;
}

void WaitingQueue::UpdateTurn(Client* client) {
  if (std::get<RequestHandle>(client->turn) != 0) turns_.erase(client->turn);
  RequestHandle oldest = 0;
  for (const Lane* lane :
       {&client->scores, &client->generations, &client->uncached, &client->preempted}) {
    const Queue& queue = lane->queue;
    if (!queue.empty() && (oldest == 0 || queue.begin()->first < oldest))
      oldest = queue.begin()->first;
  }
  const bool runs =
      client->num_sequences >
      client->waiting.num_requests + static_cast<int64_t>(client->preempted.queue.size());
  client->turn = {client->served, runs, oldest};
  if (oldest != 0) turns_.emplace(client->turn, client);
}

void WaitingQueue::ForgetIdleClients() {
  const int64_t lowest = active_served_.empty() ? INT64_MAX : *active_served_.begin();
  std::erase_if(clients_, [lowest](const auto& item) {
    return item.second.num_sequences == 0 && item.second.served <= lowest;
  });
  forget_at_ = 2 * clients_.size() + 64;
}

}  // namespace taopd
