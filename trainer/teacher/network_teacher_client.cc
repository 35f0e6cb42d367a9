#include "trainer/teacher/network_teacher_client.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "trainer/teacher/retrying_client.h"
#include "trainer/teacher/routing_teacher_client.h"
#include "trainer/teacher/transport/grpc_transport.h"
#include "trainer/teacher/transport/http_transport.h"
#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {
namespace {

// The time limit of one request for TeacherInfo, so that an endpoint that hangs does not delay the
// others for longer.
constexpr absl::Duration kInfoTimeout = absl::Seconds(5);

bool MayAnswerLater(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded ||
         status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kCancelled;
}

// Returns a seed that differs in every process, so that the trainers of one teacher do not retry at
// the same moments.
uint64_t ProcessSeed() {
  std::random_device device;
  return DeriveSeed(device(), "teacher client jitter", {device(), static_cast<uint64_t>(getpid())});
}

class NetworkTeacherClient final : public TeacherClient {
 public:
  NetworkTeacherClient(std::unique_ptr<ScoreTransport> transport,
                       const TeacherClientOptions& options, Clock* clock)
      : options_(options),
        clock_(clock),
        transport_(std::move(transport)),
        client_(options, transport_.get(), clock) {}

  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override {
    const absl::Time deadline = clock_->Now() + timeout;
    const absl::Duration limit = std::min(kInfoTimeout, options_.request_timeout);
    Backoff backoff(options_);
    std::vector<absl::Status> reasons(options_.endpoints.size());
    for (int64_t num_tries = 1;; ++num_tries) {
      const absl::Duration left = deadline - clock_->Now();
      const auto answers = AskAll(std::clamp(left, absl::Milliseconds(1), limit));
      TAOPD_RETURN_IF_ERROR(RecordAnswers(answers, &reasons));
      if (std::ranges::any_of(answers, [](const auto& a) { return a.ok(); })) {
        TAOPD_ASSIGN_OR_RETURN(const TeacherInfo info, Agree(answers));
        client_.SetInfo(info);
        return info;
      }
      if (clock_->Now() >= deadline) {
        std::string errors;
        for (const absl::Status& reason : reasons) errors += "; " + reason.ToString();
        return Unavailable("no teacher endpoint answered within ", absl::FormatDuration(timeout),
                           errors);
      }
      clock_->SleepFor(std::min(backoff.PauseAfter(num_tries), deadline - clock_->Now()));
    }
  }

  absl::Status CheckSize(const TeacherRequest& request, const TeacherInfo& info) const override {
    return transport_->Check(request, info);
  }

  void Score(TeacherRequest request, Done done) override {
    client_.Score(std::move(request), std::move(done));
  }

  TeacherClientStats stats() const override { return client_.stats(); }

 private:
  // Queries all endpoints concurrently. The answers are in the order of the endpoints.
  std::vector<absl::StatusOr<TeacherInfo>> AskAll(absl::Duration timeout) {
    std::vector<absl::StatusOr<TeacherInfo>> answers(options_.endpoints.size());
    {
      std::vector<std::jthread> threads;  // join here
      for (size_t i = 0; i < answers.size(); ++i) {
        threads.emplace_back([&, i] { answers[i] = transport_->Ask(i, timeout); });
      }
    }
    return answers;
  }

  // Records which endpoints have answered, and the reasons why others have not. Returns the first
  // error that is no outage: that of a teacher whose answers this client cannot use.
  absl::Status RecordAnswers(const std::vector<absl::StatusOr<TeacherInfo>>& answers,
                             std::vector<absl::Status>* reasons) {
    absl::Status final_error;
    for (size_t i = 0; i < answers.size(); ++i) {
      client_.SetReachability(i, answers[i].status());
      if (answers[i].ok()) continue;
      const absl::Status error = Annotate(answers[i].status(), options_.endpoints[i]);
      if (!MayAnswerLater(error)) final_error.Update(error);
      // The last try may have less time than an answer takes, so an earlier error says more.
      absl::Status& reason = (*reasons)[i];
      if (reason.ok() || !absl::IsDeadlineExceeded(error)) reason = error;
    }
    return final_error;
  }

  // Checks that the endpoints that answered serve the same teacher, and the one that was asked for.
  // Returns its information.
  absl::StatusOr<TeacherInfo> Agree(const std::vector<absl::StatusOr<TeacherInfo>>& answers) {
    const TeacherInfo* first = nullptr;
    std::string first_name;
    TeacherInfo agreed;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].ok()) continue;
      const TeacherInfo& info = *answers[i];
      if (!options_.revision.empty() && info.revision != options_.revision) {
        return InvalidArgument(options_.endpoints[i], " serves the revision \"", info.revision,
                               "\" instead of \"", options_.revision,
                               "\", which the configuration asks for");
      }
      if (first == nullptr) {
        first = &info;
        first_name = options_.endpoints[i];
        agreed = info;
        continue;
      }
      const auto check_equal = [&](const char* field, const auto& a, const auto& b) {
        if (a == b) return absl::OkStatus();
        return FailedPrecondition("teachers differ in ", field, ": \"", a, "\" at ", first_name,
                                  " against \"", b, "\" at ", options_.endpoints[i]);
      };
      TAOPD_RETURN_IF_ERROR(check_equal("revision", first->revision, info.revision));
      TAOPD_RETURN_IF_ERROR(
          check_equal("tokenizer_hash", first->tokenizer_hash, info.tokenizer_hash));
      TAOPD_RETURN_IF_ERROR(
          check_equal("head_vocab_size", first->head_vocab_size, info.head_vocab_size));
      LowerLimits(info, &agreed);
      // Replicas on other devices may round differently. They are accepted, but not cached.
      agreed.has_stable_scores &= info.canary == first->canary;
    }
    if (!agreed.has_stable_scores) {
      agreed.canary.clear();
      LogWarning(
          "the teacher's scores are not cached: two identical requests got different ones, or its "
          "endpoints differ",
          {{"endpoint", first_name}});
    }
    return agreed;
  }

  const TeacherClientOptions options_;
  Clock* const clock_;
  const std::unique_ptr<ScoreTransport> transport_;
  RetryingClient client_;  // after the transport, because it must be destroyed first
};

absl::Status CheckDuration(const char* name, absl::Duration value, absl::Duration max) {
  if (value > absl::ZeroDuration() && value <= max) return absl::OkStatus();
  return InvalidArgument(name, " ", absl::FormatDuration(value), " is outside (0, ",
                         absl::FormatDuration(max), "]");
}

absl::Status CheckCount(const char* name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return InvalidArgument(name, " ", value, " is outside [1, ", max, "]");
}

absl::Status CheckOptions(const TeacherClientOptions& options) {
  TAOPD_RETURN_IF_ERROR(CheckDuration("request_timeout", options.request_timeout, absl::Hours(24)));
  TAOPD_RETURN_IF_ERROR(
      CheckDuration("outage_budget", options.outage_budget, absl::InfiniteDuration()));
  TAOPD_RETURN_IF_ERROR(CheckDuration("initial_backoff", options.initial_backoff, absl::Hours(1)));
  TAOPD_RETURN_IF_ERROR(CheckDuration("max_backoff", options.max_backoff, absl::Hours(1)));
  TAOPD_RETURN_IF_ERROR(
      CheckDuration("hedge_after", options.hedge_after, absl::InfiniteDuration()));
  TAOPD_RETURN_IF_ERROR(
      CheckCount("max_in_flight_per_endpoint", options.max_in_flight_per_endpoint, 65536));
  TAOPD_RETURN_IF_ERROR(
      CheckCount("max_message_bytes", options.max_message_bytes, (2LL << 30) - 1));
  if (options.tls_cert_file.empty() != options.tls_key_file.empty()) {
    return InvalidArgument("tls_cert_file and tls_key_file must be given together or not at all");
  }
  return CheckApiKey(options.api_key);
}

absl::StatusOr<std::unique_ptr<ScoreTransport>> MakeTransport(
    const std::vector<TeacherEndpoint>& endpoints, const TeacherClientOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(const TlsPem tls, ReadTlsPem(options));
  if (endpoints[0].protocol->make_http == nullptr) {
    return std::make_unique<GrpcScoreTransport>(endpoints, tls, options);
  }
  return std::make_unique<HttpScoreTransport>(endpoints, options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeNetworkTeacherClient(
    const TeacherClientOptions& options, Clock* clock) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<TeacherEndpoint> endpoints,
                         ParseTeacherEndpoints(options.endpoints));
  TAOPD_RETURN_IF_ERROR(CheckOptions(options));
  TAOPD_RETURN_IF_ERROR(CheckTlsUse({endpoints.begin(), endpoints.end()}, options));
  TAOPD_ASSIGN_OR_RETURN(auto transport, MakeTransport(endpoints, options));
  TeacherClientOptions seeded = options;
  seeded.jitter_seed = ProcessSeed();
  return std::make_unique<NetworkTeacherClient>(std::move(transport), seeded, clock);
}

}  // namespace taopd
