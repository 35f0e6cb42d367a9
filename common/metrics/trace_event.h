// Timelines in the Trace Event format of Chrome, which chrome://tracing and Perfetto open, as JSON
// texts. Pure functions.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

// Returns an event that began at `begin`, counted from the start of the timeline, and took
// `duration`. It is shown in row `row`.
std::string CompleteEvent(const std::string& name, const std::string& category,
                          absl::Duration begin, absl::Duration duration, int64_t row);
// Returns an event that names the subject of the timeline.
std::string ProcessNameEvent(const std::string& name);
std::string RowNameEvent(int64_t row, const std::string& name);

// Returns the file of these events. Ends with a newline.
std::string TraceText(const std::vector<std::string>& events);

}  // namespace taopd
