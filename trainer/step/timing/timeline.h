// A timeline of a run in Chrome's Trace Event format, which chrome://tracing and Perfetto open: the
// work of the training thread, and the times at which each response was generated and scored.
//
// Spans are kept in memory, at most kMaxSpans of them.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace taopd {

// The tracks of the timeline. Spans of kTrainer follow one another. Spans of the others may overlap
// and are then drawn in several rows.
enum class TimelineTrack { kTrainer, kRollout, kTeacher };

// Thread-safe.
class Timeline {
 public:
  static constexpr size_t kMaxSpans = 200'000;

  // `clock` must outlive the object.
  explicit Timeline(Clock* clock = Clock::Real()) : clock_(clock) {}

  absl::Time Now() const { return clock_->Now(); }
  // Records that `name` took from `start` to `end`. Spans beyond the limit are dropped; the name of
  // the process in the JSON says how many.
  void Add(TimelineTrack track, std::string name, absl::Time start, absl::Time end);

  // Returns the JSON object of all spans so far: complete events in microseconds since the first
  // one, and the names of the process and of the rows.
  std::string Json() const;

 private:
  struct Span {
    TimelineTrack track;
    std::string name;
    absl::Time start, end;
  };
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
  int64_t num_dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The timeline of the first steps of a process. The training thread uses it.
class RunTrace {
 public:
  // Traces `num_steps` steps. `path` is the file that Write replaces. If it is empty, Write does
  // nothing.
  RunTrace(int64_t num_steps, std::string path)
      : num_steps_left_(num_steps), path_(std::move(path)) {}

  // Begins the next step. Returns the timeline that gets its spans, or null if it is not traced.
  Timeline* BeginStep();
  // Adds a span of the training thread that ends now, if the current step is traced.
  void Add(const char* name, absl::Time start) {
    if (is_on_) timeline_.Add(TimelineTrack::kTrainer, name, start, timeline_.Now());
  }
  // Writes the file if the current step is traced. Called after each step, so that a killed run
  // leaves a file that can be opened. A failure is logged.
  void Write() const;

 private:
  int64_t num_steps_left_;
  const std::string path_;
  bool is_on_ = false;  // for the current step
  Timeline timeline_;
};

}  // namespace taopd
