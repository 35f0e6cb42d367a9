// Numbers that are added to the logits of some ids. A request may name every id of the vocabulary,
// and each token of each choice adds them all: copies share one array, which is read in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace taopd {

// Immutable but for assignment. Copies are cheap and may be used by several threads.
class LogitBias {
 public:
  using Entry = std::pair<int32_t, float>;  // id and bias

  LogitBias() = default;
  LogitBias(std::initializer_list<Entry> entries) : LogitBias(std::vector<Entry>(entries)) {}
  // The entries may have any order. The last one of an id counts.
  explicit LogitBias(std::vector<Entry> entries) {
    const auto same_id = [](const Entry& a, const Entry& b) { return a.first == b.first; };
    std::reverse(entries.begin(), entries.end());
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.first < b.first; });
    entries.erase(std::unique(entries.begin(), entries.end(), same_id), entries.end());
    if (!entries.empty()) entries_ = std::make_shared<const std::vector<Entry>>(std::move(entries));
  }

  bool empty() const { return entries_ == nullptr; }
  // In ascending order of the ids, each of which occurs once.
  std::span<const Entry> entries() const {
    return empty() ? std::span<const Entry>() : std::span<const Entry>(*entries_);
  }

 private:
  std::shared_ptr<const std::vector<Entry>> entries_;  // null: none
};

}  // namespace taopd
