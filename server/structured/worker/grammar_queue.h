// The frames that wait for the thread that computes masks. Grammars take turns by the processor
// time that their masks have taken: others wait for one mask of a grammar that is slow or has many
// texts, not for all of them. Frames of one grammar keep their order. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace taopd {

class GrammarQueue {
 public:
  bool empty() const { return waiting_.empty(); }

  void Push(uint64_t grammar, std::string frame) {
    std::deque<std::string>& frames = waiting_[grammar];
    // A grammar does not save up time while it has nothing to do.
    if (frames.empty()) served_ms_[grammar] = std::max(served_ms_[grammar], least_ms_);
    frames.push_back(std::move(frame));
  }
  // Takes the next frame of the grammar that has been served least. REQUIRES: !empty()
  std::pair<uint64_t, std::string> Take() {
    const auto next = std::min_element(
        waiting_.begin(), waiting_.end(),
        [this](const auto& a, const auto& b) { return served_ms_[a.first] < served_ms_[b.first]; });
    std::pair<uint64_t, std::string> taken(next->first, std::move(next->second.front()));
    least_ms_ = served_ms_[next->first];
    next->second.pop_front();
    if (next->second.empty()) waiting_.erase(next);
    return taken;
  }
  void Charge(uint64_t grammar, double cpu_ms) {
    const auto found = served_ms_.find(grammar);
    if (found != served_ms_.end()) found->second += cpu_ms;
  }
  // REQUIRES: no frame of the grammar waits.
  void Forget(uint64_t grammar) { served_ms_.erase(grammar); }

 private:
  std::map<uint64_t, std::deque<std::string>> waiting_;  // no deque is empty
  std::map<uint64_t, double> served_ms_;
  double least_ms_ = 0.0;  // served_ms_ of the grammar that was taken last
};

}  // namespace taopd
