// Decides by the time whether one more step fits before the limit of a process, whether an
// evaluation must be saved now, and whether a checkpoint is due.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace taopd {

// The run ends when the remaining time is less than the longest step and the longest checkpoint so
// far together. Not thread-safe.
class WallTimeLimit {
 public:
  // `limit` counts from `start`; zero means no limit.
  WallTimeLimit(absl::Time start, absl::Duration limit) : start_(start), limit_(limit) {}

  void ObserveStep(absl::Duration duration) { longest_step_ = std::max(longest_step_, duration); }
  void ObserveSave(absl::Duration duration) { longest_save_ = std::max(longest_save_, duration); }

  // Returns false before the first step, so that a run that is restarted again and again makes
  // progress.
  bool IsUp(absl::Time now) const {
    return longest_step_ > absl::ZeroDuration() && now > EndOfPause();
  }

  // Returns when a pause ends, with room for the longest step and the longest checkpoint so far.
  absl::Time EndOfPause() const {
    if (limit_ == absl::ZeroDuration()) return absl::InfiniteFuture();
    return start_ + limit_ - longest_step_ - longest_save_;
  }

  // For work that can be interrupted and saved at any moment, such as an evaluation with a journal.
  // Returns whether the remaining time is less than the longest checkpoint so far.
  bool MustSaveNow(absl::Time now) const {
    return limit_ != absl::ZeroDuration() && now + longest_save_ > start_ + limit_;
  }

 private:
  const absl::Time start_;
  const absl::Duration limit_;
  absl::Duration longest_step_, longest_save_;
};

// Decides whether a checkpoint is due because the last one is too old. Not thread-safe.
class SaveInterval {
 public:
  // The first interval begins at `start`. With an interval of zero, no checkpoint is ever due.
  SaveInterval(absl::Time start, absl::Duration interval) : last_(start), interval_(interval) {}

  void Saved(absl::Time now) { last_ = now; }
  bool IsDue(absl::Time now) const {
    return interval_ > absl::ZeroDuration() && now - last_ >= interval_;
  }

 private:
  absl::Time last_;
  const absl::Duration interval_;
};

}  // namespace taopd
