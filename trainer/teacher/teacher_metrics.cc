#include "trainer/teacher/teacher_metrics.h"

#include <absl/strings/ascii.h>

#include <string>
#include <string_view>

namespace taopd {
namespace {

// Returns the part of a metric's name for an endpoint: 10_0_0_1_5 for "grpc://10.0.0.1:5".
std::string MetricNameOf(const std::string& endpoint) {
  const size_t scheme = endpoint.find("://");
  std::string name = scheme == std::string::npos ? endpoint : endpoint.substr(scheme + 3);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '-') c = '_';
  }
  return name;
}

// Fills in a name of the glossary: "teacher/endpoint/attempts" becomes teacher/10_0_0_1_5/attempts
// or, for the teacher "math", teacher/math/10_0_0_1_5/attempts.
std::string FillIn(std::string name, const std::string& teacher, const std::string& endpoint = "") {
  constexpr std::string_view kEndpoint = "endpoint/";
  if (const size_t at = name.find(kEndpoint); at != std::string::npos) {
    name.replace(at, kEndpoint.size(), endpoint + "/");
  }
  if (!teacher.empty()) name.insert(name.find('/') + 1, teacher + "/");
  return name;
}

void AddEndpoint(const EndpointStats& stats, absl::Duration age, const std::string& teacher,
                 Metrics* metrics) {
  const std::string endpoint = MetricNameOf(stats.name);
  const auto add = [&](const char* name, auto value) {
    metrics->emplace_back(FillIn(name, teacher, endpoint), static_cast<double>(value));
  };
  const uint64_t answered = stats.attempts - stats.failures;
  if (answered > 0) {
    add("teacher/endpoint/latency_s",
        absl::ToDoubleSeconds(stats.latency) / static_cast<double>(answered));
  }
  add("teacher/endpoint/attempts", stats.attempts);
  add("teacher/endpoint/failures", stats.failures);
  add("teacher/endpoint/bytes_sent", stats.bytes_sent);
  add("teacher/endpoint/bytes_received", stats.bytes_received);
  if (age > absl::ZeroDuration()) {
    add("teacher/endpoint/left_out_share", absl::FDivDuration(stats.left_out, age));
  }
}

void AddClient(const TeacherClientStats& stats, Metrics* metrics) {
  const auto add = [&](const char* name, auto value) {
    metrics->emplace_back(FillIn(name, stats.name), static_cast<double>(value));
  };
  add("teacher/retries", stats.retries);
  add("teacher/failures", stats.failures);
  add("teacher/hedges", stats.hedges);
  if (stats.cache_hits + stats.cache_misses > 0) {
    add("teacher/cache_hits", stats.cache_hits);
    add("teacher/cache_misses", stats.cache_misses);
    add("teacher/cache_damaged", stats.cache_damaged);
    add("teacher/cache_evicted", stats.cache_evicted);
  }
  for (const EndpointStats& endpoint : stats.endpoints) {
    AddEndpoint(endpoint, stats.age, stats.name, metrics);
  }
}

}  // namespace

Metrics TeacherMetrics(const TeacherClientStats& stats) {
  Metrics metrics;
  AddClient(stats, &metrics);
  for (const TeacherClientStats& teacher : stats.teachers) AddClient(teacher, &metrics);
  return metrics;
}

}  // namespace taopd
