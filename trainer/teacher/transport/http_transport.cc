#include "trainer/teacher/transport/http_transport.h"

#include <absl/time/clock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "common/io/sha256.h"
#include "trainer/net/server_replies.h"
#include "trainer/teacher/transport/teacher_protocols.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

// A longer reply is refused, because many replies are in memory at the same time.
constexpr int64_t kMaxHttpReplyBytes = int64_t{512} << 20;
constexpr int64_t kMaxModelsBytes = int64_t{4} << 20;

// The sequences of the canary; the first is also the probe. Other weights give other probabilities
// after these tokens. The ids are in every vocabulary.
constexpr std::pair<int32_t, int32_t> kCanaryTokens[] = {{1, 1}, {2, 3}, {5, 8}, {13, 21}};
// Not the run's top_k, because runs with another one have the same teacher. Few, because servers
// may limit it.
constexpr int64_t kCanaryTopK = 4;
// Log-probs are rounded to multiples of 1 / kCanarySteps nats, which hides the rounding errors of
// float32, about 1e-5. It does not hide those of bfloat16 logits, which differ by 0.06 and more
// between batches: rounding that coarse would hide other weights as well. FindCanary asks twice to
// find out whether a server's scores are stable.
constexpr double kCanarySteps = 256;

// Turns NOT_FOUND into FAILED_PRECONDITION, which is retried (retry_policy.h): the server may have
// the model or the path later.
absl::Status NotFoundAsRefusal(const absl::Status& error) {
  return absl::IsNotFound(error) ? FailedPrecondition(error.message()) : error;
}

}  // namespace

HttpScoreTransport::HttpScoreTransport(const std::vector<TeacherEndpoint>& endpoints,
                                       const TeacherClientOptions& options)
    : options_(options),
      protocol_(endpoints[0].protocol->make_http()),
      http_({endpoints.begin(), endpoints.end()}, options),
      pool_(static_cast<int>(static_cast<int64_t>(endpoints.size()) *
                             options.max_in_flight_per_endpoint)) {}

HttpScoreTransport::~HttpScoreTransport() = default;

absl::Status HttpScoreTransport::Check(const TeacherRequest& request, const TeacherInfo&) const {
  const int64_t bytes = protocol_->MaxReplyBytes(request);
  if (bytes <= kMaxHttpReplyBytes) return absl::OkStatus();
  return InvalidArgument("its reply may take ", bytes, " bytes of JSON, above the limit of ",
                         kMaxHttpReplyBytes);
}

void HttpScoreTransport::Start(size_t endpoint, const TeacherRequest& request,
                               const TeacherInfo& info, absl::Duration timeout,
                               std::function<void(Result)> done) {
  pool_.Enqueue([this, endpoint, &request, &info, deadline = absl::Now() + timeout,
                 done = std::move(done)]() mutable {
    // The attempt refers to the request, which is gone once `done` runs.
    Result result = Attempt(endpoint, request, info, deadline - absl::Now());
    std::exchange(done, nullptr)(std::move(result));
  });
}

void HttpScoreTransport::CancelAll() { http_.CancelAll(); }

ScoreTransport::Result HttpScoreTransport::Send(size_t endpoint, const TeacherRequest& request,
                                                const std::string& model, absl::Duration timeout) {
  const std::string body = protocol_->RequestBody(request, model);
  const auto reply = http_.Exchange(endpoint, protocol_->score_path(), body,
                                    protocol_->MaxReplyBytes(request), timeout);
  Result result{absl::InternalError("not set"), std::nullopt, static_cast<int64_t>(body.size()), 0};
  if (!reply.ok()) {
    result.scores = reply.status();
    return result;
  }
  result.bytes_received = static_cast<int64_t>(reply->body.size());
  if (reply->status != 200) {
    result.scores = ErrorOf(*reply, request);
    if (reply->retry_after) result.pushback = std::min(*reply->retry_after, kMaxRetryAfter);
    return result;
  }
  result.scores = protocol_->ParseReply(reply->body, request, model);
  return result;
}

ScoreTransport::Result HttpScoreTransport::Attempt(size_t endpoint, const TeacherRequest& request,
                                                   const TeacherInfo& info,
                                                   absl::Duration timeout) {
  Result result = Send(endpoint, request, info.model_name, timeout);
  if (!result.scores.ok()) return result;
  if (result.scores->revision != info.revision) {
    result.scores = FailedPrecondition("the reply is of the revision \"", result.scores->revision,
                                       "\" instead of \"", info.revision, "\"");
    return result;
  }
  const absl::Status verified = VerifyTeacherScores(*result.scores, request, info);
  if (!verified.ok()) result.scores = verified;
  return result;
}

absl::Status HttpScoreTransport::ErrorOf(const HttpReply& reply,
                                         const TeacherRequest& request) const {
  const absl::Status error = ErrorOfReply(reply, options_);
  if (absl::IsInvalidArgument(error)) return protocol_->ExplainRefusal(error, request);
  return NotFoundAsRefusal(error);
}

absl::StatusOr<TeacherInfo> HttpScoreTransport::Ask(size_t endpoint, absl::Duration timeout) {
  TAOPD_ASSIGN_OR_RETURN(const HttpReply models, http_.Exchange(endpoint, HttpProtocol::kModelsPath,
                                                                "", kMaxModelsBytes, timeout));
  if (models.status != 200) return Annotate(ErrorOf(models, {}), HttpProtocol::kModelsPath);
  const absl::StatusOr<ListedModel> model = FindListedModel(models.body, options_.model);
  TAOPD_RETURN_IF_ERROR(NotFoundAsRefusal(model.status()));
  TeacherInfo info;
  info.model_name = model->id;
  // The servers reserve one position for a generated token.
  info.max_model_len =
      (model->max_model_len > 0 ? model->max_model_len : std::numeric_limits<int32_t>::max()) - 1;
  info.max_top_k = options_.probe_top_k;
  info.supports_entropy = false;
  info.sends_tail = false;
  TAOPD_ASSIGN_OR_RETURN(const TeacherScores scores,
                         Probe(endpoint, kCanaryTokens[0], options_.probe_top_k, info, timeout));
  info.revision = scores.revision;
  TAOPD_RETURN_IF_ERROR(FindCanary(endpoint, timeout, &info));
  return info;
}

absl::StatusOr<TeacherScores> HttpScoreTransport::Probe(size_t endpoint,
                                                        std::pair<int32_t, int32_t> tokens,
                                                        int64_t top_k, const TeacherInfo& info,
                                                        absl::Duration timeout) {
  TeacherRequest probe;
  probe.request_id = "probe";
  probe.token_ids = {tokens.first, tokens.second};
  probe.score_start = 1;
  probe.top_k = static_cast<int32_t>(top_k);
  absl::StatusOr<TeacherScores> scores = Send(endpoint, probe, info.model_name, timeout).scores;
  // A server that refuses this request refuses all scoring.
  if (absl::IsInvalidArgument(scores.status()))
    return FailedPrecondition(scores.status().message());
  TAOPD_RETURN_IF_ERROR(scores.status());
  TeacherInfo reply_info = info;
  reply_info.revision = scores->revision;
  TAOPD_RETURN_IF_ERROR(VerifyTeacherScores(*scores, probe, reply_info));
  return scores;
}

absl::StatusOr<std::string> HttpScoreTransport::AskCanary(size_t endpoint, const TeacherInfo& info,
                                                          absl::Duration timeout) {
  Sha256 hash;
  const auto add = [&hash](float log_prob) {
    // -inf has no step, so there is a lower limit.
    const double rounded = std::round(std::max<double>(log_prob, -1e6) * kCanarySteps);
    const auto step = static_cast<int64_t>(rounded);
    hash.Update(std::as_bytes(std::span(&step, 1)));
  };
  for (const auto& tokens : kCanaryTokens) {
    TAOPD_ASSIGN_OR_RETURN(TeacherScores scores,
                           Probe(endpoint, tokens, kCanaryTopK, info, timeout));
    // The order of ids with equal log-probs may differ, so the ids are left out.
    std::ranges::sort(scores.log_probs);
    for (const float log_prob : scores.log_probs) add(log_prob);
    for (const float log_prob : scores.sampled_log_probs) add(log_prob);
  }
  return hash.HexDigest().substr(0, 16);
}

absl::Status HttpScoreTransport::FindCanary(size_t endpoint, absl::Duration timeout,
                                            TeacherInfo* info) {
  // Tries twice, because another client's requests may have shared a batch with those of a try.
  constexpr int kTries = 2;
  for (int i = 0; i < kTries; ++i) {
    const auto first = AskCanary(endpoint, *info, timeout);
    const auto second = first.ok() ? AskCanary(endpoint, *info, timeout) : first;
    // The server has answered the probe, so it can be used without a canary.
    if (absl::IsFailedPrecondition(second.status())) break;
    TAOPD_RETURN_IF_ERROR(second.status());
    if (*first != *second) continue;
    info->canary = *first;
    return absl::OkStatus();
  }
  info->has_stable_scores = false;
  return absl::OkStatus();
}

}  // namespace taopd
