#include "server/metrics/request_trace.h"

#include <nlohmann/json.hpp>

#include "common/io/file.h"

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

uint64_t RequestTrace::num_lost() const {
  absl::MutexLock lock(&mutex_);
  return num_lost_;
}

absl::Status RequestTrace::WriteTo(const std::string& path) const {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  {
    absl::MutexLock lock(&mutex_);
    for (const Event& event : events_) {
      nlohmann::ordered_json json;
      json["name"] = event.name;
      json["cat"] = "request";
      json["ph"] = "X";  // a complete event: begin and duration, in microseconds
      json["ts"] = absl::ToDoubleMicroseconds(event.begin - start_);
      json["dur"] = absl::ToDoubleMicroseconds(event.end - event.begin);
      json["pid"] = 1;
      json["tid"] = event.sequence;
      if (text.back() != '[') text += ",\n";
      text += json.dump();
    }
  }
  text += "]}\n";
  return WriteFileAtomically(path, text);
}

}  // namespace taopd
