// A timeline of requests in Chrome's trace event format, which chrome://tracing and Perfetto show.
// A sequence shows when it waited, and when it was scored or its prompt and tokens were computed.
//
// Thread-safe. The events are kept in memory, at most kMaxEvents of them, and written at the end.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class RequestTrace {
 public:
  static constexpr size_t kMaxEvents = 1'000'000;

  explicit RequestTrace(absl::Time start) : start_(start) {}

  // Adds a span of sequence `sequence`. Spans of one sequence must not overlap. A span that is
  // empty or has no end is left out.
  void Add(uint64_t sequence, const char* name, absl::Time begin, absl::Time end);
  // Returns the number of events that found the trace full.
  uint64_t num_lost() const {
    absl::MutexLock lock(&mutex_);
    return num_lost_;
  }

  // Writes the trace. Returns the errors of the file system.
  absl::Status WriteTo(const std::string& path) const;

 private:
  struct Event {
    uint64_t sequence;
    const char* name;  // a literal
    absl::Time begin;
    absl::Time end;
  };

  const absl::Time start_;
  mutable absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  uint64_t num_lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace taopd
