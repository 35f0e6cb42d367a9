#include "trainer/step/timing/timeline.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/metrics/trace_event.h"

namespace taopd {
namespace {

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

int64_t RowOf(TimelineTrack track, size_t index) {
  return kRowsPerTrack * (static_cast<int64_t>(track) + 1) + static_cast<int64_t>(index);
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

std::string Timeline::Json() const {
  std::vector<Span> spans;
  std::string process = "taopd-trainer";
  {
    absl::MutexLock lock(&mutex_);
    spans = spans_;
    if (num_dropped_ > 0) process += Concat(" (", num_dropped_, " later spans are missing)");
  }
  std::ranges::stable_sort(spans, [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<std::string> events, complete;
  events.push_back(ProcessNameEvent(process));
  std::map<TimelineTrack, std::vector<absl::Time>> rows;  // when each row of a track is free again
  for (const Span& span : spans) {
    std::vector<absl::Time>& free_at = rows[span.track];
    const auto row =
        std::ranges::find_if(free_at, [&](absl::Time free) { return free <= span.start; });
    const auto index = static_cast<size_t>(row - free_at.begin());
    if (row == free_at.end()) {
      free_at.push_back(span.end);
    } else {
      *row = span.end;
    }
    complete.push_back(CompleteEvent(span.name, TrackName(span.track),
                                     span.start - spans.front().start, span.end - span.start,
                                     RowOf(span.track, index)));
  }
  for (const auto& [track, free_at] : rows) {
    for (size_t i = 0; i < free_at.size(); ++i) {
      events.push_back(RowNameEvent(RowOf(track, i), free_at.size() == 1
                                                         ? std::string(TrackName(track))
                                                         : Concat(TrackName(track), " ", i + 1)));
    }
  }
  std::move(complete.begin(), complete.end(), std::back_inserter(events));
  return TraceText(events);
}

Timeline* RunTrace::BeginStep() {
  is_on_ = num_steps_left_ > 0;
  if (!is_on_) return nullptr;
  --num_steps_left_;
  return &timeline_;
}

void RunTrace::Write() const {
  if (!is_on_ || path_.empty()) return;
  const absl::Status written = WriteFileAtomically(path_, timeline_.Json());
  if (!written.ok()) LogWarning("the timeline could not be written", {{"error", written}});
}

}  // namespace taopd
