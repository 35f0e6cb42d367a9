#include "trainer/step/timing/timeline.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace taopd {
namespace {

constexpr int64_t kProcess = 1;
// Rows of a track start at a multiple of this number, so that viewers sort them by track.
constexpr int64_t kRowsPerTrack = 10'000;

const char* TrackName(TimelineTrack track) {
  switch (track) {
    case TimelineTrack::kTrainer:
      return "training";
    case TimelineTrack::kRollout:
      return "rollout";
    case TimelineTrack::kTeacher:
      return "teacher";
  }
  return "";
}

}  // namespace

void Timeline::Add(TimelineTrack track, std::string name, absl::Time start, absl::Time end) {
  absl::MutexLock lock(&mutex_);
  if (spans_.size() >= kMaxSpans) {
    ++num_dropped_;
    return;
  }
  spans_.push_back({track, std::move(name), start, std::max(start, end)});
}

int64_t Timeline::num_dropped() const {
  absl::MutexLock lock(&mutex_);
  return num_dropped_;
}

std::string Timeline::Json() const {
  using Json = nlohmann::ordered_json;
  std::vector<Span> spans;
  {
    absl::MutexLock lock(&mutex_);
    spans = spans_;
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.start < b.start; });
  Json events = Json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", kProcess},
                    {"tid", 0},
                    {"args", {{"name", "taopd-trainer"}}}});
  std::map<TimelineTrack, std::vector<absl::Time>> rows;  // when each row of a track is free again
  Json complete = Json::array();
  for (const Span& span : spans) {
    std::vector<absl::Time>& free_at = rows[span.track];
    const auto row = std::find_if(free_at.begin(), free_at.end(),
                                  [&](absl::Time free) { return free <= span.start; });
    const auto index = static_cast<int64_t>(row - free_at.begin());
    if (row == free_at.end()) {
      free_at.push_back(span.end);
    } else {
      *row = span.end;
    }
    complete.push_back({{"name", span.name},
                        {"cat", TrackName(span.track)},
                        {"ph", "X"},
                        {"ts", absl::ToDoubleMicroseconds(span.start - spans.front().start)},
                        {"dur", absl::ToDoubleMicroseconds(span.end - span.start)},
                        {"pid", kProcess},
                        {"tid", kRowsPerTrack * (static_cast<int64_t>(span.track) + 1) + index}});
  }
  for (const auto& [track, free_at] : rows) {
    for (size_t i = 0; i < free_at.size(); ++i) {
      const std::string name = free_at.size() == 1 ? std::string(TrackName(track))
                                                   : Concat(TrackName(track), " ", i + 1);
      const int64_t tid =
          kRowsPerTrack * (static_cast<int64_t>(track) + 1) + static_cast<int64_t>(i);
      events.push_back({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", kProcess},
                        {"tid", tid},
                        {"args", {{"name", name}}}});
    }
  }
  for (Json& event : complete) events.push_back(std::move(event));
  const Json trace = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace taopd
