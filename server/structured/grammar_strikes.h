// Counts how often a grammar has ended taopd-grammar. After two strikes it is refused for a while;
// then it may be tried again. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "common/base/status.h"

namespace taopd {

class GrammarStrikes {
 public:
  static constexpr int kMaxStrikes = 2;
  static constexpr size_t kMaxGrammars = 1024;  // remembered at most

  // `memory` is how long a grammar is refused, and also how long a single strike counts.
  explicit GrammarStrikes(absl::Duration memory) : memory_(memory) {}

  void Add(const std::string& key, const std::string& how, absl::Time now) {
    Forget(now);
    Record& record = records_[key];
    record = {record.num_strikes + 1, how, now};
    if (records_.size() <= kMaxGrammars) return;
    records_.erase(std::min_element(
        records_.begin(), records_.end(),
        [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
  }

  // Returns INVALID_ARGUMENT while the grammar is refused.
  absl::Status Check(const std::string& key, absl::Time now) {
    Forget(now);
    const auto found = records_.find(key);
    if (found == records_.end() || found->second.num_strikes < kMaxStrikes) return absl::OkStatus();
    return InvalidArgument(
        found->second.how, "; it ended the grammar process ", found->second.num_strikes,
        " times and is refused for ",
        absl::FormatDuration(absl::Ceil(found->second.last + memory_ - now, absl::Seconds(1))));
  }

 private:
  struct Record {
    int num_strikes = 0;
    std::string how;  // the way in which it ended the last process
    absl::Time last;
  };

  void Forget(absl::Time now) {
    std::erase_if(records_, [&](const auto& item) { return now - item.second.last >= memory_; });
  }

  const absl::Duration memory_;
  std::map<std::string, Record> records_;
};

}  // namespace taopd
