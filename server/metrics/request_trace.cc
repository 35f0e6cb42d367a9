#include "server/metrics/request_trace.h"

#include "common/io/file.h"
#include "common/metrics/trace_event.h"

namespace taopd {

void RequestTrace::Add(uint64_t sequence, const char* name, absl::Time begin, absl::Time end) {
  if (begin == absl::InfinitePast() || end == absl::InfiniteFuture() || end <= begin) return;
  absl::MutexLock lock(&mutex_);
  if (events_.size() >= kMaxEvents) {
    ++num_lost_;
    return;
  }
  events_.push_back({sequence, name, begin, end});
}

absl::Status RequestTrace::WriteTo(const std::string& path) const {
  std::vector<std::string> events;
  {
    absl::MutexLock lock(&mutex_);
    events.reserve(events_.size());
    for (const Event& event : events_) {
      events.push_back(CompleteEvent(event.name, "request", event.begin - start_,
                                     event.end - event.begin,
                                     static_cast<int64_t>(event.sequence)));
    }
  }
  return WriteFileAtomically(path, TraceText(events));
}

}  // namespace taopd
