#include "trainer/teacher/teacher_metrics.h"

#include <string>

namespace taopd {
namespace {

// The part of a metric's name that stands for an endpoint: "grpc://10.0.0.1:5" is 10_0_0_1_5.
std::string MetricNameOf(const std::string& endpoint) {
  const size_t scheme = endpoint.find("://");
  std::string name = scheme == std::string::npos ? endpoint : endpoint.substr(scheme + 3);
  for (char& c : name) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    if (!is_plain) c = '_';
  }
  return name;
}

void AddEndpoint(const EndpointStats& stats, absl::Duration age, const std::string& prefix,
                 Metrics* metrics) {
  const std::string base = Concat(prefix, MetricNameOf(stats.name), "/");
  const auto add = [&](const char* name, auto value) {
    metrics->emplace_back(base + name, static_cast<double>(value));
  };
  const uint64_t answered = stats.attempts - stats.failures;
  if (answered > 0) {
    add("latency_s", absl::ToDoubleSeconds(stats.latency) / static_cast<double>(answered));
  }
  add("attempts", stats.attempts);
  add("failures", stats.failures);
  add("bytes_sent", stats.bytes_sent);
  add("bytes_received", stats.bytes_received);
  if (age > absl::ZeroDuration()) {
    add("left_out_share", absl::FDivDuration(stats.left_out, age));
  }
}

void AddClient(const TeacherClientStats& stats, const std::string& prefix, Metrics* metrics) {
  const auto add = [&](const char* name, auto value) {
    metrics->emplace_back(prefix + name, static_cast<double>(value));
  };
  add("retries", stats.retries);
  add("failures", stats.failures);
  add("hedges", stats.hedges);
  if (stats.cache_hits + stats.cache_misses > 0) {
    add("cache_hits", stats.cache_hits);
    add("cache_misses", stats.cache_misses);
    add("cache_damaged", stats.cache_damaged);
    add("cache_evicted", stats.cache_evicted);
  }
  for (const EndpointStats& endpoint : stats.endpoints) {
    AddEndpoint(endpoint, stats.age, prefix, metrics);
  }
}

}  // namespace

Metrics TeacherMetrics(const TeacherClientStats& stats) {
  Metrics metrics;
  AddClient(stats, "teacher/", &metrics);
  for (const TeacherClientStats& teacher : stats.teachers) {
    AddClient(teacher, Concat("teacher/", teacher.name, "/"), &metrics);
  }
  return metrics;
}

}  // namespace taopd
