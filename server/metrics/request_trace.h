// A timeline of requests in the Chrome trace event format, which chrome://tracing and Perfetto
// show: for each sequence, the time it waited, its prompt, and its tokens.
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

  // A stretch of time of sequence `sequence`. Parts of one sequence must not overlap; a part that
  // is empty or without end is left out.
  void Add(uint64_t sequence, const char* name, absl::Time begin, absl::Time end);
  // Events that found the trace full.
  uint64_t num_lost() const;

  // Writes the trace. Returns what the file system says.
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
