// The trainer's view of a teacher: scores in, arrays out. Implementations: gRPC (taopd-teacher),
// and fakes in tests; vLLM and SGLang over HTTP fit behind the same seam.
//
// Threads: any thread may call; `done` runs once per request on a client thread and must not block.
// It may call Score. Destroying the client gives CANCELLED to the requests that are not answered
// yet and waits for their `done`, so it must not happen inside of a `done`.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace taopd {

struct TeacherInfo {
  std::string model_name;
  std::string revision;
  std::string tokenizer_hash;  // empty: the teacher has no tokenizer
  int64_t head_vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t max_top_k = 0;
  int64_t max_candidates = 0;
  int64_t max_dense_vocab_size = 0;  // dense log-probs only of a head_vocab_size up to this
  bool supports_temperature = false;
};

struct TeacherRequest {
  std::string request_id;
  std::vector<int32_t> token_ids;  // [P] prompt and response
  int64_t score_start = 1;         // first response position
  int32_t top_k = 16;
  float temperature = 1.0f;  // the teacher divides its logits by this
  bool entropy = false;
  bool dense = false;                  // the log-probs of every id
  int32_t num_candidates = 0;          // M
  std::vector<int32_t> candidate_ids;  // [R, M] ids whose log-probs are wanted as well
};

// The teacher's reply as it came: R = P - score_start rows; see proto/taopd/v1/teacher.proto.
// Nothing changes it after it is received. What the loss needs of it is SupportScores
// (trainer/step/scored_rollout.h).
struct TeacherScores {
  int32_t top_k = 0;
  std::vector<int32_t> ids;                // [R, k]
  std::vector<float> log_probs;            // [R, k]
  std::vector<float> log_tail;             // [R]
  std::vector<float> sampled_log_probs;    // [R]
  std::vector<float> entropy;              // [R], where asked for
  std::vector<float> candidate_log_probs;  // [R, M]
  std::vector<float> candidate_log_tail;   // [R] outside of ids and candidates, when M > 0
  std::vector<float> dense_log_probs;      // [R, V], where asked for
  std::string revision;
};

struct TeacherClientStats {
  uint64_t requests = 0;
  uint64_t retries = 0;   // attempts beyond each request's first
  uint64_t failures = 0;  // requests given up
  int64_t in_flight = 0;  // attempts on the wire at present
  int64_t queued = 0;     // requests that wait in the client, for a place or after a failure
  bool waiting = false;   // every endpoint is failing at present
};

class TeacherClient {
 public:
  virtual ~TeacherClient() = default;
  // Asks every endpoint; those that answer must serve the same revision (else FAILED_PRECONDITION).
  // Waits up to `timeout` for the first answer, then gives UNAVAILABLE. The limits returned are the
  // smallest of the endpoints'. An endpoint that is down now takes part once it is back, if it
  // then serves that revision.
  virtual absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) = 0;
  // Scores one sequence; retries what can be retried until the outage budget is used up, then
  // `done` gets UNAVAILABLE. FAILED_PRECONDITION before Connect; INVALID_ARGUMENT when the request
  // exceeds a limit of TeacherInfo. The queue of waiting requests is not bounded here: that is the
  // caller's, who knows the cost of a request. Every reply is verified before it is handed on (row
  // count, ids in range and distinct, log-probs finite or -inf, at most 0 and sorted, mass at most
  // 1, revision as at Connect): verify_scores.h. A bad reply is asked for once more, then it is a
  // DATA_LOSS error.
  virtual void Score(TeacherRequest request,
                     std::function<void(absl::StatusOr<TeacherScores>)> done) = 0;
  virtual TeacherClientStats stats() const = 0;
};

// Which failures are tried again, and how, is in retrying_client.h.
struct GrpcTeacherOptions {
  std::vector<std::string> endpoints;                   // "grpc://host:port"
  absl::Duration request_timeout = absl::Seconds(120);  // of one attempt
  // Of one request, attempts and pauses together, counted from its first failure. For a request
  // that waits in the client, the time in which every endpoint fails counts as well.
  absl::Duration outage_budget = absl::Minutes(30);
  int64_t max_in_flight_per_endpoint = 64;  // further requests wait in the client
  int64_t max_message_bytes = 64 << 20;
  // The n-th pause is uniform in [0, min(max_backoff, initial_backoff * 2^(n-1))].
  absl::Duration initial_backoff = absl::Milliseconds(250);
  absl::Duration max_backoff = absl::Seconds(30);
};
// INVALID_ARGUMENT for a malformed endpoint or an option out of range. Does not connect yet.
// Traffic is plain text and ignores the proxies of the environment: teachers stand in the same
// network.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeGrpcTeacherClient(
    const GrpcTeacherOptions& options, Clock* clock = Clock::Real());

}  // namespace taopd
