// The trainer's view of a teacher: a request goes in, scores come out. Implementations: gRPC
// (MakeGrpcTeacherClient, for taopd-teacher), and fakes in tests.
//
// Threads: any thread may call. `done` runs once per request on a thread of the client; it must not
// block and may call Score.
//
// End: destroying the client answers the open requests with CANCELLED and waits for their `done`.
// The client must therefore not be destroyed inside of a `done`.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/wire/teacher_protocol.h"

namespace taopd {

struct TeacherInfo {
  std::string model_name;
  std::string revision;
  std::string tokenizer_hash;  // empty if the teacher has no tokenizer
  int64_t head_vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t max_top_k = 0;
  int64_t max_candidates = 0;
  int64_t max_dense_vocab_size = 0;  // largest head_vocab_size with dense log-probs
  bool supports_temperature = false;
};

// P is the number of token_ids, R = P - score_start the number of scored rows.
struct TeacherRequest {
  std::string request_id;
  std::vector<int32_t> token_ids;  // [P] prompt and response
  int64_t score_start = 1;         // first response position
  int32_t top_k = 16;
  float temperature = 1.0f;  // the teacher divides its logits by this
  bool entropy = false;
  bool dense = false;                  // asks for the log-probs of every id
  int32_t num_candidates = 0;          // M
  std::vector<int32_t> candidate_ids;  // [R, M] ids whose log-probs are wanted as well
};

// The teacher's reply as it came: R = P - score_start rows; proto/taopd/v1/teacher.proto defines every
// array. V is the teacher's head_vocab_size. Nothing changes a reply after it is received. What the
// loss needs of it is SupportScores (trainer/step/scored_rollout.h).
struct TeacherScores {
  int32_t top_k = 0;
  std::vector<int32_t> ids;                // [R, k]
  std::vector<float> log_probs;            // [R, k]
  std::vector<float> log_tail;             // [R]
  std::vector<float> sampled_log_probs;    // [R]
  std::vector<float> entropy;              // [R] if asked for, else empty
  std::vector<float> candidate_log_probs;  // [R, M]
  std::vector<float> candidate_log_tail;   // [R] outside of ids and candidates, if M > 0
  std::vector<float> dense_log_probs;      // [R, V] if asked for, else empty
  std::string revision;
};

struct TeacherClientStats {
  uint64_t requests = 0;
  uint64_t retries = 0;   // attempts beyond each request's first
  uint64_t failures = 0;  // requests answered with an error
  int64_t in_flight = 0;  // attempts on the wire now
  int64_t queued = 0;     // requests that wait in the client, for an endpoint or after a failure
  bool waiting = false;   // every endpoint is failing now
};

class TeacherClient {
 public:
  virtual ~TeacherClient() = default;
  // Asks every endpoint what it serves. The limits returned are the smallest of the endpoints'. An
  // endpoint that is down now takes part as soon as it is back and serves the same revision.
  // Errors:
  //   UNAVAILABLE          no endpoint has answered within `timeout`;
  //   FAILED_PRECONDITION  the endpoints that answer differ in revision, tokenizer or vocabulary,
  //                        or speak a protocol version that this client does not know.
  virtual absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) = 0;
  // Scores one sequence. Every reply is verified (verify_scores.h) before it is handed on. The
  // queue of waiting requests is not bounded: the caller knows the cost of a request and limits
  // them. Errors that `done` receives:
  //   UNAVAILABLE          the outage budget is used up;
  //   INVALID_ARGUMENT     the request exceeds a limit of TeacherInfo;
  //   FAILED_PRECONDITION  Connect has not succeeded yet, or an endpoint serves another revision;
  //   DATA_LOSS            two replies in a row failed verification;
  //   CANCELLED            the client is being destroyed.
  virtual void Score(TeacherRequest request,
                     std::function<void(absl::StatusOr<TeacherScores>)> done) = 0;
  virtual TeacherClientStats stats() const = 0;
};

// retry_policy.h says which failures are retried.
struct GrpcTeacherOptions {
  std::vector<std::string> endpoints;                   // "grpc://host:port"
  absl::Duration request_timeout = absl::Seconds(120);  // limit of one attempt
  // Limit of one request, attempts and pauses together, counted from its first failure. For a
  // request that waits in the client, the time in which every endpoint fails counts as well.
  absl::Duration outage_budget = absl::Minutes(30);
  int64_t max_in_flight_per_endpoint = 64;  // requests beyond it wait in the client
  int64_t max_message_bytes = kMaxMessageBytes;
  // The n-th pause is uniform in [0, min(max_backoff, initial_backoff * 2^(n-1))].
  absl::Duration initial_backoff = absl::Milliseconds(250);
  absl::Duration max_backoff = absl::Seconds(30);
};
// Makes a client of taopd-teacher; it does not connect yet. Returns INVALID_ARGUMENT if an endpoint
// is malformed or an option is out of range. Traffic is not encrypted and ignores the proxies of
// the environment, because teachers are expected in the same network. `clock` must outlive the
// client.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeGrpcTeacherClient(
    const GrpcTeacherOptions& options, Clock* clock = Clock::Real());

}  // namespace taopd
