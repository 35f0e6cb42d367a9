#include "common/metrics/jsonl_sink.h"

#include <cmath>
#include <utility>

namespace taopd {
namespace {

bool IsReserved(const std::string& name) {
  return name == "step" || name == "time" || name == "non_finite";
}

nlohmann::ordered_json LineStart(int64_t step, Clock* clock) {
  nlohmann::ordered_json line;
  line["step"] = step;
  line["time"] = static_cast<double>(absl::ToUnixMicros(clock->Now())) / 1e6;
  return line;
}

std::string ReplaceBadUtf8(const std::string& text) {
  return nlohmann::json::parse(JsonText(text)).get<std::string>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JsonlSink>> JsonlSink::Open(const std::string& path, Clock* clock,
                                                           int64_t truncate_to_bytes) {
  TAOPD_ASSIGN_OR_RETURN(auto writer, BufferedJsonlWriter::Open(path, truncate_to_bytes));
  return std::unique_ptr<JsonlSink>(new JsonlSink(std::move(writer), clock));
}

absl::Status JsonlSink::Write(int64_t step, const Metrics& metrics) {
  nlohmann::ordered_json line = LineStart(step, clock_);
  nlohmann::ordered_json non_finite = nlohmann::ordered_json::array();
  for (const auto& [name, value] : metrics) {
    if (IsReserved(name)) {
      return InvalidArgument("metric name \"", name, "\" is a key of metrics.jsonl itself");
    }
    const std::string key = ReplaceBadUtf8(name);
    if (line.contains(key)) return InvalidArgument("metric \"", key, "\" is written twice");
    if (std::isfinite(value)) {
      line[key] = value;
    } else {
      line[key] = nullptr;
      non_finite.push_back(key);
    }
  }
  if (!non_finite.empty()) line["non_finite"] = std::move(non_finite);
  writer_.Write(line);
  return absl::OkStatus();
}

}  // namespace taopd
