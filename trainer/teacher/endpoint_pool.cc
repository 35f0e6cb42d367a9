#include "trainer/teacher/endpoint_pool.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace taopd {
namespace {

// Returns the log's warning about an endpoint with this refusal (Endpoint::refusal).
const char* WarningOf(absl::StatusCode refusal) {
  if (refusal == absl::StatusCode::kOk) return "teacher endpoint fails";
  return refusal == absl::StatusCode::kFailedPrecondition
             ? "teacher endpoint is another teacher and is left out"
             : "teacher endpoint refuses the API key and is left out";
}

}  // namespace

EndpointPool::EndpointPool(const RetryOptions& options, Backoff* backoff)
    : max_in_flight_per_endpoint_(options.max_in_flight_per_endpoint), backoff_(backoff) {
  TAOPD_CHECK(!options.endpoints.empty());
  for (const std::string& name : options.endpoints) {
    Endpoint endpoint;
    endpoint.stats.name = name;
    endpoints_.push_back(std::move(endpoint));
  }
}

int64_t EndpointPool::num_in_flight() const {
  int64_t sum = 0;
  for (const Endpoint& endpoint : endpoints_) sum += endpoint.num_in_flight;
  return sum;
}

bool EndpointPool::IsOpen(const Endpoint& endpoint, absl::Time now) const {
  if (endpoint.paused_until > now) return false;
  if (endpoint.num_in_flight >= max_in_flight_per_endpoint_) return false;
  return !endpoint.is_failing || (!endpoint.is_probing && endpoint.probe_at <= now);
}

bool EndpointPool::AnyOpen(absl::Time now) const {
  return std::ranges::any_of(endpoints_, [&](const Endpoint& e) { return IsOpen(e, now); });
}

bool EndpointPool::AnyClosed(absl::Time now) const {
  return std::ranges::any_of(
      endpoints_, [&](const Endpoint& e) { return e.is_failing || e.paused_until > now; });
}

bool EndpointPool::AnotherIsOpen(size_t index, absl::Time now) const {
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const Endpoint& endpoint = endpoints_[i];
    if (i != index && !endpoint.is_failing && endpoint.paused_until <= now) return true;
  }
  return false;
}

bool EndpointPool::AllRefuse() const {
  return std::ranges::all_of(endpoints_, [](const Endpoint& e) {
    return e.is_failing && e.refusal != absl::StatusCode::kOk;
  });
}

std::optional<size_t> EndpointPool::ChooseForHedge(size_t index, absl::Time now) const {
  std::optional<size_t> best;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const Endpoint& endpoint = endpoints_[i];
    if (i == index || endpoint.is_failing || !IsOpen(endpoint, now)) continue;
    if (!best.has_value() || endpoint.num_in_flight < endpoints_[*best].num_in_flight) best = i;
  }
  return best;
}

size_t EndpointPool::Choose(std::optional<size_t> last_failed, absl::Time now) const {
  std::optional<size_t> best;
  const auto rank = [&](size_t i) {
    return std::make_pair(last_failed == i, endpoints_[i].num_in_flight);
  };
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (!IsOpen(endpoints_[i], now)) continue;
    if (!best.has_value() || rank(i) < rank(*best)) best = i;
  }
  TAOPD_CHECK(best.has_value());
  return *best;
}

absl::Time EndpointPool::NextOpening(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.paused_until > now) next = std::min(next, endpoint.paused_until);
    const bool awaits_probe = endpoint.is_failing && !endpoint.is_probing;
    if (awaits_probe && endpoint.probe_at > now) next = std::min(next, endpoint.probe_at);
  }
  return next;
}

bool EndpointPool::BeginAttempt(size_t index) {
  Endpoint& endpoint = endpoints_[index];
  ++endpoint.num_in_flight;
  endpoint.is_probing = endpoint.is_failing;
  return endpoint.is_probing;
}

void EndpointPool::EndAttempt(size_t index, bool is_probe) {
  Endpoint& endpoint = endpoints_[index];
  --endpoint.num_in_flight;
  if (is_probe) endpoint.is_probing = false;
}

void EndpointPool::Count(size_t index, const ScoreTransport::Result& result,
                         absl::Duration latency) {
  EndpointStats& stats = endpoints_[index].stats;
  ++stats.attempts;
  stats.bytes_sent += static_cast<uint64_t>(result.bytes_sent);
  stats.bytes_received += static_cast<uint64_t>(result.bytes_received);
  if (result.scores.ok()) {
    stats.latency += latency;
  } else {
    ++stats.failures;
  }
}

void EndpointPool::SetFailing(size_t index, const absl::Status& error, absl::Time now) {
  Endpoint& endpoint = endpoints_[index];
  const absl::StatusCode refusal = IsRefusal(error) ? error.code() : absl::StatusCode::kOk;
  if (!endpoint.is_failing || endpoint.refusal != refusal)
    LogWarning(WarningOf(refusal), {{"endpoint", endpoint.stats.name}, {"error", error}});
  endpoint.refusal = refusal;
  if (!endpoint.is_failing) {
    endpoint.is_failing = true;
    endpoint.failing_since = now;
    endpoint.num_failed_probes = 0;
  } else if (endpoint.probe_at > now) {
    return;  // the attempt began before the endpoint was closed, so the pause does not grow
  }
  endpoint.probe_at = now + backoff_->PauseAfter(++endpoint.num_failed_probes);
  const bool all_fail =
      std::ranges::all_of(endpoints_, [](const Endpoint& e) { return e.is_failing; });
  if (all_fail && outage_since_ == absl::InfiniteFuture()) outage_since_ = now;
}

void EndpointPool::SetWorking(size_t index, absl::Time now) {
  Endpoint& endpoint = endpoints_[index];
  if (endpoint.is_failing) {
    LogInfo("teacher endpoint answers again", {{"endpoint", endpoint.stats.name}});
    endpoint.stats.left_out += now - endpoint.failing_since;
  }
  endpoint.is_failing = false;
  outage_since_ = absl::InfiniteFuture();
}

void EndpointPool::PauseUntil(size_t index, absl::Time until) {
  Endpoint& endpoint = endpoints_[index];
  endpoint.paused_until = std::max(endpoint.paused_until, until);
}

std::vector<EndpointStats> EndpointPool::stats(absl::Time now) const {
  std::vector<EndpointStats> all;
  for (const Endpoint& endpoint : endpoints_) {
    EndpointStats stats = endpoint.stats;
    stats.is_failing = endpoint.is_failing;
    stats.serves_another_revision =
        endpoint.is_failing && endpoint.refusal == absl::StatusCode::kFailedPrecondition;
    if (endpoint.is_failing) stats.left_out += now - endpoint.failing_since;
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace taopd
