#include "trainer/step/balance/move_rollouts.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "common/base/check.h"

namespace taopd {
namespace {

// Writes fields in sequence, or reads them back in the same order.
class Fields {
 public:
  explicit Fields(std::vector<uint8_t>* bytes) : to_(bytes) {}
  Fields(const uint8_t* begin, const uint8_t* end) : from_(begin), end_(end) {}

  template <typename T>
  void Number(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Bytes(value, sizeof(T));
  }
  template <typename List>
  void Values(List* values) {
    auto size = static_cast<int64_t>(values->size());
    Number(&size);
    if (to_ == nullptr) values->resize(static_cast<size_t>(size));
    Bytes(values->data(), values->size() * sizeof(typename List::value_type));
  }
  bool at_end() const { return from_ == end_; }

 private:
  void Bytes(void* data, size_t size) {
    if (to_ != nullptr) {
      const auto* begin = static_cast<const uint8_t*>(data);
      to_->insert(to_->end(), begin, begin + size);
      return;
    }
    TAOPD_CHECK(static_cast<size_t>(end_ - from_) >= size);
    if (size > 0) std::memcpy(data, from_, size);
    from_ += size;
  }

  std::vector<uint8_t>* to_ = nullptr;
  const uint8_t* from_ = nullptr;
  const uint8_t* end_ = nullptr;
};

void Visit(ScoredRollout* item, Fields* fields) {
  Rollout& rollout = item->rollout;
  fields->Values(&rollout.prompt_ids);
  fields->Values(&rollout.response_ids);
  fields->Values(&rollout.behavior_log_probs);
  fields->Values(&rollout.top_ids);
  fields->Number(&rollout.finish);
  fields->Values(&rollout.source);
  fields->Number(&rollout.is_given);
  SupportScores& scores = item->scores;
  fields->Number(&scores.support_size);
  fields->Values(&scores.ids);
  fields->Values(&scores.log_probs);
  fields->Values(&scores.log_tail);
  fields->Values(&scores.sampled_log_probs);
  fields->Values(&scores.entropy);
  fields->Values(&scores.dense_log_probs);
  fields->Number(&scores.num_shared);
  fields->Number(&scores.num_beyond_vocabulary);
  fields->Number(&scores.weight);
  fields->Number(&item->reward);
  fields->Number(&item->advantage);
}

// Sends messages[r] to each rank r, and returns the messages from each rank to this one. Every
// message is padded to the length of the longest and preceded by its own length.
absl::StatusOr<std::vector<std::vector<uint8_t>>> ExchangeMessages(
    const std::vector<std::vector<uint8_t>>& messages, ProcessGroup* group) {
  int64_t longest = 0;
  for (const std::vector<uint8_t>& message : messages) {
    longest = std::max(longest, static_cast<int64_t>(message.size()));
  }
  const at::Tensor size = at::full({1}, longest, at::kLong);
  TAOPD_RETURN_IF_ERROR(group->AllReduce(size, Reduction::kMax));
  const int64_t chunk = size.item<int64_t>() + static_cast<int64_t>(sizeof(int64_t));
  const at::Tensor sent = at::zeros({group->world_size(), chunk}, at::kByte);
  const at::Tensor arrived = at::empty_like(sent);
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    uint8_t* to = sent.mutable_data_ptr<uint8_t>() + rank * chunk;
    const auto length = static_cast<int64_t>(messages[rank].size());
    std::memcpy(to, &length, sizeof(length));
    std::ranges::copy(messages[rank], to + sizeof(length));
  }
  TAOPD_RETURN_IF_ERROR(group->AllToAll(arrived, sent));
  std::vector<std::vector<uint8_t>> received;
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    const uint8_t* from = arrived.const_data_ptr<uint8_t>() + rank * chunk;
    int64_t length = 0;
    std::memcpy(&length, from, sizeof(length));
    from += sizeof(length);
    received.emplace_back(from, from + length);
  }
  return received;
}

}  // namespace

absl::StatusOr<std::map<int64_t, ScoredRollout>> MoveRollouts(
    const std::vector<RolloutMove>& moves,
    const std::function<const ScoredRollout&(int64_t sequence)>& item, ProcessGroup* group) {
  std::map<int64_t, ScoredRollout> received;
  if (moves.empty()) return received;
  std::vector<std::vector<uint8_t>> messages(group->world_size());  // to each rank
  for (const RolloutMove& move : moves) {
    if (move.from != group->rank()) continue;
    Fields fields(&messages[move.to]);
    ScoredRollout copy = item(move.sequence);
    Visit(&copy, &fields);
  }
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::vector<uint8_t>> arrived,
                         ExchangeMessages(messages, group));
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    Fields fields(arrived[rank].data(), arrived[rank].data() + arrived[rank].size());
    for (const RolloutMove& move : moves) {
      if (move.from == rank && move.to == group->rank()) Visit(&received[move.sequence], &fields);
    }
    TAOPD_CHECK(fields.at_end());
  }
  return received;
}

}  // namespace taopd
