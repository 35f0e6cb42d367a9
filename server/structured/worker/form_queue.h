// Frames that wait for the thread of masks, in turns of the forms by the time of a processor that
// their masks have taken: a form whose masks are slow, or one with many texts, makes the others
// wait for one of its masks, not for all. Frames of one form keep their order. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace taopd {

class FormQueue {
 public:
  bool empty() const { return waiting_.empty(); }

  void Push(uint64_t form, std::string frame) {
    std::deque<std::string>& frames = waiting_[form];
    // A form that had nothing to do does not save up time.
    if (frames.empty()) served_ms_[form] = std::max(served_ms_[form], least_ms_);
    frames.push_back(std::move(frame));
  }
  // The next frame of the form that has been served least. REQUIRES: !empty()
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
  void Charge(uint64_t form, double cpu_ms) {
    const auto found = served_ms_.find(form);
    if (found != served_ms_.end()) found->second += cpu_ms;
  }
  // The form is gone, and has no frames.
  void Forget(uint64_t form) { served_ms_.erase(form); }

 private:
  std::map<uint64_t, std::deque<std::string>> waiting_;  // no deque is empty
  std::map<uint64_t, double> served_ms_;
  double least_ms_ = 0.0;  // of the form that was taken last
};

}  // namespace taopd
