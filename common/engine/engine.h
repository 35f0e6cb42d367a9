// One inference engine for both programs: the teacher's scores are prefill with rows to report,
// rollouts and evaluation are prefill and decode, and one sequence may ask for both.
//
// This header knows neither LibTorch nor gRPC, so that servers and trainers can include it.
//
// Life cycle of a request: Submit -> (validated) queue -> running batch -> done(result), exactly
// once, on the engine's thread (or inside Submit when it is refused). `done` must not block and
// must not call back into the engine other than Submit and Cancel.
//
// Determinism: a sequence's sampled tokens depend on its own seed and weights; scores do not depend
// on what else is in the batch (on the CPU bit for bit). Requests given in one SubmitBatch to an
// idle engine are scheduled in that order, independent of time.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace taopd {

// Rows r = 0..R-1 are positions t = start + r of the sequence, R = P - start. See teacher.proto for
// the meaning of every array; the names are the same.
struct ScoreParams {
  int64_t start = 1;         // 1 <= start < P
  int32_t top_k = 0;         // 0 <= k <= limits().max_top_k
  float temperature = 1.0f;  // > 0
  bool entropy = false;
  bool rank = false;
  bool support_stats = false;
  bool dense = false;                  // limits().max_dense_vocab_size >= vocab_size
  int32_t num_candidates = 0;          // M
  std::vector<int32_t> candidate_ids;  // [R, M]
};

struct ScoreRows {
  int64_t num_rows = 0;                    // R
  int32_t top_k = 0;                       // k
  std::vector<int32_t> ids;                // [R, k] by falling probability, ties by lowest id
  std::vector<float> log_probs;            // [R, k]
  std::vector<float> log_tail;             // [R] log-sum-exp over the complement of ids
  std::vector<float> sampled_log_probs;    // [R]
  std::vector<int32_t> sampled_ranks;      // [R] or empty
  std::vector<float> entropy;              // [R] or empty
  std::vector<float> candidate_log_probs;  // [R, M] or empty
  std::vector<float> log_support_mass;     // [R] or empty
  std::vector<float> log_sum_exp;          // [R] or empty
  std::vector<float> candidate_log_tail;   // [R] or empty: outside of ids and candidates
  std::vector<float> dense_log_probs;      // [R, V] or empty
};

struct SamplingParams {
  int64_t max_new_tokens = 16;          // >= 1
  float temperature = 1.0f;             // 0 = greedy
  float top_p = 1.0f;                   // in (0, 1]
  int32_t top_k = 0;                    // 0 = off
  std::vector<int32_t> stop_token_ids;  // besides the model's own end-of-sequence ids
  bool ignore_eos = false;
  uint64_t seed = 0;          // draw i of the sequence is RandomStream(seed) at step i
  int32_t num_log_probs = 0;  // alternatives to report per generated token; 0 = none
};

enum class FinishReason {
  kStop,
  kLength
};  // kStop: an end-of-sequence or stop id, which is included

struct GeneratedTokens {
  std::vector<int32_t> ids;  // [G], G >= 1
  // [G] log-prob of each token under softmax(logits / temperature) before top-p and top-k cut it
  // (temperature 0: under temperature 1). This is the behavior log-prob of off-policy corrections.
  std::vector<float> log_probs;
  std::vector<int32_t> top_ids;      // [G, num_log_probs]
  std::vector<float> top_log_probs;  // [G, num_log_probs]
  FinishReason finish = FinishReason::kLength;
};

struct InferenceRequest {
  std::string request_id;            // for logs
  std::vector<int32_t> token_ids;    // [P], P >= 1
  std::optional<ScoreParams> score;  // at least one of the two
  std::optional<SamplingParams> sampling;
  absl::Time deadline =
      absl::InfiniteFuture();  // dropped with DEADLINE_EXCEEDED when passed in the queue
  // Called for each generated token on the engine's thread, for streaming. Optional.
  std::function<void(int32_t token_id, float log_prob)> on_token;
};

struct InferenceResult {
  std::optional<ScoreRows> score;
  std::optional<GeneratedTokens> generated;
};

using InferenceDone = std::function<void(absl::StatusOr<InferenceResult>)>;

struct EngineLimits {
  int64_t vocab_size = 0;     // token ids must be below
  int64_t max_model_len = 0;  // prompt plus generated tokens
  int32_t max_top_k = 0;
  int32_t max_candidates = 0;
  int64_t max_dense_vocab_size = 0;  // ScoreParams::dense is refused for a larger vocabulary
  int64_t max_num_seqs = 0;          // sequences that run at once
  int64_t max_queued_tokens = 0;
  bool can_generate = true;  // false: no memory was given to the KV cache, so only scores
};

struct EngineStats {
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  int64_t queued_tokens = 0;
  uint64_t prompt_tokens = 0;  // since start
  uint64_t generated_tokens = 0;
  uint64_t scored_rows = 0;
  uint64_t finished_requests = 0;
  uint64_t failed_requests = 0;
  absl::Time last_step;  // heartbeat; the engine is stalled when it is old and work waits
};

struct EngineOptions {
  int64_t max_model_len = 0;  // 0 = the model's max_position_embeddings
  int32_t max_top_k = 128;
  int32_t max_candidates = 128;
  int64_t max_dense_vocab_size = 4096;  // largest vocabulary whose dense log-probs may be asked for
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 8192;  // tokens of one step
  int64_t max_queued_tokens = 4 << 20;  // bound of the queue before the engine; one longer request
                                        // is accepted when the queue is empty
  int64_t max_queued_requests =
      1 << 16;  // the same in requests, since a short one has its cost too
  int64_t head_workspace_bytes = 256 << 20;  // logits of one chunk of rows; [T, V] never exists
  int64_t kv_cache_bytes = int64_t{4}
                           << 30;  // most that the KV cache may take; decides max_num_seqs
                                   // when it is too small for the wish above. Taken at the
                                   // first generation; 0 = this engine only scores
};

using RequestHandle = uint64_t;  // 0 = refused

class InferenceEngine {
 public:
  virtual ~InferenceEngine() = default;

  // Never blocks. Refusals (INVALID_ARGUMENT, RESOURCE_EXHAUSTED when the queue is full,
  // UNAVAILABLE after Drain) reach `done` before Submit returns, and the handle is 0. Any thread.
  virtual RequestHandle Submit(InferenceRequest request, InferenceDone done) = 0;
  // All or nothing under one lock: the engine sees the requests together, in this order.
  virtual std::vector<RequestHandle> SubmitBatch(
      std::vector<std::pair<InferenceRequest, InferenceDone>> requests) = 0;
  // The request's done gets CANCELLED soon, unless it has finished. Unknown handles are ignored.
  virtual void Cancel(RequestHandle handle) = 0;
  // Refuses new work and returns when all accepted work is done or at `deadline` (the rest then
  // gets UNAVAILABLE). Any thread but the engine's.
  virtual void Drain(absl::Time deadline) = 0;

  virtual EngineLimits limits() const = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace taopd
