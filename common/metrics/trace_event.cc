#include "common/metrics/trace_event.h"

#include <absl/strings/str_join.h>

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kProcess = 1;

std::string NameEvent(const char* what, int64_t row, const std::string& name) {
  return JsonText(
      {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", row}, {"args", {{"name", name}}}});
}

}  // namespace

std::string CompleteEvent(const std::string& name, const std::string& category,
                          absl::Duration begin, absl::Duration duration, int64_t row) {
  return JsonText({{"name", name},
                   {"cat", category},
                   {"ph", "X"},
                   {"ts", absl::ToDoubleMicroseconds(begin)},
                   {"dur", absl::ToDoubleMicroseconds(duration)},
                   {"pid", kProcess},
                   {"tid", row}});
}

std::string ProcessNameEvent(const std::string& name) { return NameEvent("process_name", 0, name); }

std::string RowNameEvent(int64_t row, const std::string& name) {
  return NameEvent("thread_name", row, name);
}

std::string TraceText(const std::vector<std::string>& events) {
  return Concat("{\"traceEvents\":[", absl::StrJoin(events, ",\n"),
                "],\"displayTimeUnit\":\"ms\"}\n");
}

}  // namespace taopd
