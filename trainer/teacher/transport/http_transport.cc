#include "trainer/teacher/transport/http_transport.h"

#include <absl/time/clock.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

// A longer reply is refused: as text, the scores of a sequence must fit into memory many times.
constexpr int64_t kMaxHttpReplyBytes = int64_t{512} << 20;
constexpr int64_t kMaxModelsBytes = int64_t{4} << 20;

// The server's own words, in any of the shapes of its errors, or the start of the body.
std::string WordsOf(const std::string& body) {
  const auto value = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) {
    for (const char* key : {"error", "message", "detail"}) {
      const auto found = value.find(key);
      if (found == value.end()) continue;
      if (found->is_string()) return found->get<std::string>().substr(0, 500);
      if (found->is_object() && found->contains("message") && found->at("message").is_string()) {
        return found->at("message").get<std::string>().substr(0, 500);
      }
    }
  }
  return body.substr(0, 200);
}

}  // namespace

HttpScoreTransport::HttpScoreTransport(const std::vector<TeacherEndpoint>& endpoints,
                                       const TeacherClientOptions& options)
    : endpoints_(endpoints),
      options_(options),
      protocol_(MakeHttpProtocol(endpoints[0].protocol)),
      connections_(endpoints, options),
      max_threads_(endpoints.size() * static_cast<size_t>(options.max_in_flight_per_endpoint)) {}

HttpScoreTransport::~HttpScoreTransport() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    work_.SignalAll();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status HttpScoreTransport::Check(const TeacherRequest& request, const TeacherInfo&) const {
  const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
  const int64_t bytes =
      protocol_->MaxReplyBytes(num_tokens, num_tokens - request.score_start, request.top_k);
  if (bytes <= kMaxHttpReplyBytes) return absl::OkStatus();
  return InvalidArgument("its reply may take ", bytes, " bytes of JSON, above the limit of ",
                         kMaxHttpReplyBytes);
}

void HttpScoreTransport::Start(size_t endpoint, const TeacherRequest& request,
                               const TeacherInfo& info, absl::Duration timeout,
                               std::function<void(Result)> done) {
  absl::MutexLock lock(&mutex_);
  jobs_.push_back({endpoint, &request, &info, absl::Now() + timeout, std::move(done)});
  if (num_idle_threads_ < jobs_.size() && threads_.size() < max_threads_) {
    threads_.emplace_back([this] { RunJobs(); });
  }
  work_.Signal();
}

void HttpScoreTransport::CancelAll() { connections_.CancelAll(); }

void HttpScoreTransport::RunJobs() {
  mutex_.Lock();
  while (true) {
    while (jobs_.empty() && !is_stopping_) {
      ++num_idle_threads_;
      work_.Wait(&mutex_);
      --num_idle_threads_;
    }
    if (jobs_.empty()) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    mutex_.Unlock();
    Result result =
        Attempt(job.endpoint, *job.request, *job.info, job.deadline - absl::Now());
    job.done(std::move(result));
    job.done = nullptr;
    mutex_.Lock();
  }
  mutex_.Unlock();
}

ScoreTransport::Result HttpScoreTransport::Attempt(size_t endpoint, const TeacherRequest& request,
                                                   const TeacherInfo& info,
                                                   absl::Duration timeout) {
  const std::string body = protocol_->RequestBody(request, info.model_name);
  const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
  const auto reply = connections_.Exchange(
      endpoint, protocol_->score_path(), body,
      protocol_->MaxReplyBytes(num_tokens, num_tokens - request.score_start, request.top_k),
      timeout);
  Result result{absl::InternalError("not set"), std::nullopt, static_cast<int64_t>(body.size()), 0};
  if (!reply.ok()) {
    result.scores = reply.status();
    return result;
  }
  result.bytes_received = static_cast<int64_t>(reply->body.size());
  if (reply->status != 200) {
    result.scores = ErrorOf(*reply, request);
    result.pushback = reply->retry_after;
    return result;
  }
  result.scores = protocol_->ParseReply(reply->body, request, info.model_name);
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
  const std::string message = Concat("HTTP ", reply.status, ": ", WordsOf(reply.body));
  switch (reply.status) {
    case 400:
    case 413:
    case 422:
      return protocol_->ExplainRefusal(InvalidArgument(message), request);
    case 401:
    case 403:
      return absl::PermissionDeniedError(Concat(
          message, options_.api_key.empty() ? " (no API key was sent)" : " (an API key was sent)"));
    case 404:  // the server is there and has no such model or path
      return FailedPrecondition(message);
    case 429:
      return ResourceExhausted(message);
    case 408:
    case 502:
    case 503:
    case 504:
      return Unavailable(message);
    default:
      return reply.status >= 500 ? Internal(message) : InvalidArgument(message);
  }
}

std::vector<absl::StatusOr<TeacherInfo>> HttpScoreTransport::AskAll(absl::Duration timeout) {
  std::vector<absl::StatusOr<TeacherInfo>> answers(endpoints_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    threads.emplace_back([this, i, timeout, &answers] { answers[i] = Ask(i, timeout); });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

absl::StatusOr<TeacherInfo> HttpScoreTransport::Ask(size_t endpoint, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  TAOPD_ASSIGN_OR_RETURN(const HttpReply models,
                         connections_.Exchange(endpoint, HttpProtocol::kModelsPath, "",
                                               kMaxModelsBytes, timeout));
  TeacherRequest probe;
  probe.request_id = "probe";
  probe.token_ids = {1, 1};
  probe.score_start = 1;
  probe.top_k = static_cast<int32_t>(options_.probe_top_k);
  if (models.status != 200) return Annotate(ErrorOf(models, probe), HttpProtocol::kModelsPath);
  TAOPD_ASSIGN_OR_RETURN(const ListedModel model, FindListedModel(models.body, options_.model));
  TeacherInfo info;
  info.model_name = model.id;
  info.max_model_len = protocol_->MaxTokens(
      model.max_model_len > 0 ? model.max_model_len : std::numeric_limits<int32_t>::max());
  info.max_top_k = options_.probe_top_k;
  info.supports_entropy = false;
  info.sends_tail = false;

  const std::string body = protocol_->RequestBody(probe, model.id);
  TAOPD_ASSIGN_OR_RETURN(
      const HttpReply reply,
      connections_.Exchange(endpoint, protocol_->score_path(), body,
                            protocol_->MaxReplyBytes(2, 1, probe.top_k), deadline - absl::Now()));
  if (reply.status != 200) {
    const absl::Status error = ErrorOf(reply, probe);
    // No other request would fare better.
    return absl::IsInvalidArgument(error) ? FailedPrecondition(error.message()) : error;
  }
  TAOPD_ASSIGN_OR_RETURN(const TeacherScores scores,
                         protocol_->ParseReply(reply.body, probe, model.id));
  info.revision = scores.revision;
  TAOPD_RETURN_IF_ERROR(VerifyTeacherScores(scores, probe, info));
  return info;
}

}  // namespace taopd
