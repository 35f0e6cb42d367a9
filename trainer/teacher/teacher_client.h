// The trainer's view of a teacher: a request goes in, scores come out. Implementations: a client of
// servers (network_teacher_client.h), an engine in this process (engine_teacher_client.h), no
// teacher (no_teacher_client.h), a score cache in front of another client (cache/), several
// teachers behind one client (routing_teacher_client.h), and fakes in tests.
//
// Threads: any thread may call it. `done` runs once per request, on a thread of the client or
// inside Score, so the caller must hold no lock that it takes. It must not block, and may call
// Score.
//
// End: destroying the client answers the open requests with CANCELLED and waits for their `done`.
// So the client must not be destroyed inside a `done`.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct TeacherInfo {
  std::string model_name;
  std::string revision;
  std::string tokenizer_hash;          // empty if the teacher has no tokenizer
  std::vector<int32_t> eos_token_ids;  // empty if unknown, as for vLLM and SGLang
  int64_t head_vocab_size = 0;         // 0 if unknown, as for vLLM and SGLang
  int64_t max_model_len = 0;
  int64_t max_top_k = 0;
  int64_t max_candidates = 0;
  int64_t max_dense_vocab_size = 0;  // largest head_vocab_size with dense log-probs
  bool supports_temperature = false;
  bool supports_entropy = true;
  // Whether replies hold the probability outside the top-k. If not, log_tail is NaN and the loss
  // derives it (LogTailFromLogMass in taopd/objective/log_math.h).
  bool sends_tail = true;
  // For servers whose revision does not identify their weights (vLLM, SGLang): the canary, a hash
  // of their scores of fixed requests, which distinguishes servers with different weights under one
  // name. Empty if the revision suffices, and if the scores differ between two requests.
  std::string canary;
  // False if the canary's scores differed between two requests; such scores are not cached.
  bool has_stable_scores = true;

  // Returns the revision with the canary, by which a cache identifies the teacher.
  std::string Identity() const {
    return canary.empty() ? revision : revision + " canary " + canary;
  }
};

// P is the number of token_ids, R = P - score_start the number of scored rows.
struct TeacherRequest {
  std::string request_id;
  std::vector<int32_t> token_ids;  // [P] prompt and response
  int64_t score_start = 1;         // first response position
  int32_t top_k = 16;
  float temperature = 1.0f;  // the teacher divides its logits by this
  bool entropy = false;
  bool dense = false;                  // requests the log-probs of every id
  int32_t num_candidates = 0;          // M
  std::vector<int32_t> candidate_ids;  // [R, M] ids whose log-probs are requested as well
  // The data set of the prompt, which determines one of several teachers. It is not sent.
  std::string source;

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()) - score_start; }  // R
};

// The teacher's reply with R = P - score_start rows; proto/taopd/v1/teacher.proto defines every
// array. V is the teacher's head_vocab_size. The arrays are never changed after they are received.
// SupportScores (trainer/step/scored_rollout.h) is the part that the loss needs.
struct TeacherScores {
  int32_t top_k = 0;
  std::vector<int32_t> ids;                // [R, k]
  std::vector<float> log_probs;            // [R, k]
  std::vector<float> log_tail;             // [R]; all NaN if TeacherInfo::sends_tail is false
  std::vector<float> sampled_log_probs;    // [R]
  std::vector<float> entropy;              // [R] if asked for, else empty
  std::vector<float> candidate_log_probs;  // [R, M]
  std::vector<float> candidate_log_tail;   // [R] outside ids and candidates, if M > 0
  std::vector<float> dense_log_probs;      // [R, V] if requested, else empty
  std::string revision;
  // Factor of the loss on this sequence: the weight of the teacher that scored it.
  double weight = 1.0;
};

// The client's statistics of one endpoint since the client was made.
struct EndpointStats {
  std::string name;  // the name in the settings
  uint64_t attempts = 0;
  uint64_t failures = 0;    // attempts that ended with an error
  uint64_t bytes_sent = 0;  // bytes of messages, without headers
  uint64_t bytes_received = 0;
  absl::Duration latency;                // sum over the successful attempts
  absl::Duration left_out;               // time in which the endpoint got no requests but probes
  bool is_failing = false;               // left out now
  bool serves_another_revision = false;  // the reason of its failure
};

struct TeacherClientStats {
  std::string name;  // name of one of several teachers; otherwise empty
  uint64_t requests = 0;
  uint64_t retries = 0;     // attempts beyond each request's first, without hedges
  uint64_t failures = 0;    // requests answered with an error
  uint64_t hedges = 0;      // second attempts during a slow first one
  uint64_t hedges_won = 0;  // hedges that answered first
  uint64_t cache_hits = 0;
  uint64_t cache_misses = 0;
  uint64_t cache_damaged = 0;      // entries that failed their checksum; each is a miss as well
  uint64_t cache_evicted = 0;      // entries that this client deleted for their age
  uint64_t cache_evicted_new = 0;  // of these, entries written or read since it was made
  uint64_t cache_failed_writes = 0;
  int64_t in_flight = 0;  // attempts on the wire now
  int64_t queued = 0;     // requests waiting in the client for an endpoint or after a failure
  bool waiting = false;   // every endpoint is failing now
  absl::Duration age;     // time since the client was made
  std::vector<EndpointStats> endpoints;
  // One per teacher if there are several. The members above are then their sums.
  std::vector<TeacherClientStats> teachers;

  // The counters, which are summed over several teachers and over ranks.
  std::vector<uint64_t*> Counters() {
    return {&requests,      &retries,           &failures,           &hedges,
            &hedges_won,    &cache_hits,        &cache_misses,       &cache_damaged,
            &cache_evicted, &cache_evicted_new, &cache_failed_writes};
  }
};

class TeacherClient {
 public:
  using Done = std::function<void(absl::StatusOr<TeacherScores>)>;

  virtual ~TeacherClient() = default;
  // Queries every endpoint. The returned limits are the smallest of the endpoints'. An endpoint
  // that is down takes part as soon as it is back with the same revision. Errors:
  //   UNAVAILABLE          no endpoint has answered within `timeout`;
  //   INVALID_ARGUMENT     one serves another revision than the client was made for;
  //   FAILED_PRECONDITION  the endpoints that answer differ in revision, tokenizer or vocabulary,
  //                        or use a protocol version that this client does not know, or several
  //                        teachers have different tokenizers.
  // An endpoint's error that is no outage, such as UNAUTHENTICATED, is returned with its own code.
  virtual absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) = 0;
  // Checks that a request of this size is possible at the teacher that Connect described, so that a
  // run can be refused before its first step. Returns INVALID_ARGUMENT if the reply would exceed
  // the client's limit. Only the size of the request counts.
  virtual absl::Status CheckSize(const TeacherRequest&, const TeacherInfo&) const {
    return absl::OkStatus();
  }
  // Scores one sequence. Every reply is verified (verify_scores.h) before it is passed on. The
  // queue of waiting requests is not bounded, because the caller knows the cost of a request and
  // limits them. Errors that `done` receives:
  //   UNAVAILABLE          the outage budget is used up;
  //   INVALID_ARGUMENT     the request exceeds a limit of TeacherInfo or has an unknown source;
  //   FAILED_PRECONDITION  Connect has not succeeded yet;
  //   FAILED_PRECONDITION, UNAUTHENTICATED, PERMISSION_DENIED
  //                        every endpoint serves another revision or refuses the API key; the code
  //                        is that of the last answer;
  //   DATA_LOSS, INTERNAL, UNKNOWN
  //                        more attempts than there are endpoints failed in these ways; DATA_LOSS
  //                        means that a reply failed verification;
  //   CANCELLED            the client is being destroyed.
  // A teacher's error that is never retried (retry_policy.h) is passed on with its own code.
  virtual void Score(TeacherRequest request, Done done) = 0;
  virtual TeacherClientStats stats() const = 0;
};

}  // namespace taopd
