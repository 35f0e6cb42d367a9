// The requests to the engine (engine.h) and their results. Shapes: P prompt tokens, R scored rows,
// k reported ids per row, M candidates per row, V vocabulary size, G generated tokens.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/engine/sampling/logit_bias.h"

namespace taopd {

// The scores that a request asks for. Row r = 0..R-1 belongs to position t = start + r of the
// sequence, and R = P - start. teacher.proto explains every array; it writes
// logprobs where this file writes log_probs.
struct ScoreParams {
  int64_t start = 1;  // 1 <= start < P
  int32_t top_k = 0;  // k; 0 <= k <= limits().max_logprobs
  // Temperature of the scored distribution; at least kMinScoreTemperature.
  float temperature = 1.0f;
  bool entropy = false;
  bool rank = false;
  bool support_stats = false;
  bool dense = false;                  // requires vocab_size <= limits().max_dense_vocab_size
  int32_t num_candidates = 0;          // M
  std::vector<int32_t> candidate_ids;  // [R, M]
};

// Arrays that were not requested are empty.
struct ScoreRows {
  int64_t num_rows = 0;  // R
  int32_t top_k = 0;     // k
  // [R, k] in descending order of probability; ties go to the lower id.
  std::vector<int32_t> ids;
  std::vector<float> log_probs;            // [R, k]
  std::vector<float> log_tail;             // [R] log-sum-exp over the complement of ids
  std::vector<float> sampled_log_probs;    // [R]
  std::vector<int32_t> sampled_ranks;      // [R]
  std::vector<float> entropy;              // [R]
  std::vector<float> candidate_log_probs;  // [R, M]
  std::vector<float> log_support_mass;     // [R]
  std::vector<float> log_sum_exp;          // [R]
  std::vector<float> candidate_log_tail;   // [R] over the complement of ids and candidates
  std::vector<float> dense_log_probs;      // [R, V]
};

// Restricts the ids of the next token further than SamplingParams does: the interface for
// structured output (a grammar, a JSON schema). The engine calls it before each token of a
// sequence, and again with the same ids if the step is repeated, on the thread that samples and
// never concurrently for one request. An object that several requests share must be thread-safe.
class LogitMask {
 public:
  virtual ~LogitMask() = default;
  // Bit v % 64 of allowed_bits[v / 64] belongs to id v; all bits of ids below V are set on entry.
  // Clears the bits of forbidden ids, or returns false if every id is allowed. An error fails the
  // request.
  virtual absl::StatusOr<bool> Mask(std::span<const int32_t> generated_ids,
                                    std::span<uint64_t> allowed_bits) = 0;
  // Announces that Mask will be called with these ids next, unless the request ends first, so that
  // the mask can be computed while the model computes. Called when the sequence begins to run and
  // for each token but the last, on the engine's thread, which may hold a lock. Must not block.
  virtual void Prepare(std::span<const int32_t> /*generated_ids*/) {}
  // Returns whether Mask with these ids, for which Prepare was called, would return immediately
  // (possibly with an error). Waits at most `wait` for that. The engine calls it before Mask. A
  // sequence whose mask is late gets no token until the mask is ready, and the other sequences
  // continue (CONTRACT.md).
  virtual bool IsReady(std::span<const int32_t> /*generated_ids*/, absl::Duration /*wait*/) {
    return true;
  }
};

// The distribution that log-probs belong to.
enum class LogProbsMode {
  kRaw,        // softmax(logits), before anything that SamplingParams changes
  kProcessed,  // softmax(processed logits / temperature), before truncation
};

// The rules by which the next token is chosen. The fields have the meaning of vLLM's and apply in
// vLLM's order, which is the order of the fields. `mask` to `logit_bias` and the penalties give the
// processed logits. The temperature divides them. Then min_p, top_k and top_p truncate, each
// applied to the ids that the previous one kept. The token is drawn from the remaining ids in
// proportion to their probabilities.
struct SamplingParams {
  // Masks. Forbidden ids get the logit -inf. It is an error if all ids are forbidden.
  std::shared_ptr<LogitMask> mask;  // null means none
  // If set, all other ids are forbidden; not empty.
  std::optional<std::vector<int32_t>> allowed_token_ids;
  // A sequence forbids its last id whenever the generated ids end with the ids before it. A
  // sequence of one id forbids that id everywhere.
  std::vector<std::vector<int32_t>> bad_words_ids;
  // The first min_tokens tokens are neither stop_token_ids nor the model's end-of-sequence ids,
  // even with ignore_eos. 0 <= min_tokens <= max_new_tokens
  int64_t min_tokens = 0;

  // Added to the logit. Values are clamped to [-100, 100], as in vLLM.
  LogitBias logit_bias;
  // Above 0; 1 means off. Positive logits of ids in the prompt or among the generated ids are
  // divided by it, and negative ones are multiplied by it.
  float repetition_penalty = 1.0f;
  // In [-2, 2]. Subtracted from the logit of an id once per occurrence among the generated ids.
  float frequency_penalty = 0.0f;
  // In [-2, 2]. Subtracted once from the logit of every id among the generated ids.
  float presence_penalty = 0.0f;

  // The temperature of the sampled distribution. 0 is greedy: the id of the largest processed logit
  // is taken, the lowest among equals, and truncation has no effect. Any other value is at least
  // kMinScoreTemperature.
  float temperature = 1.0f;
  // In [0, 1]; 0 means off. Removes ids whose probability is below min_p times the largest one.
  float min_p = 0.0f;
  // Keeps the top_k most probable ids; ties go to the lower id. 0 and -1 mean off.
  int32_t top_k = 0;
  // In (0, 1]. Keeps the smallest set of most probable ids whose probabilities sum to at least
  // top_p; ties go to the lower id.
  float top_p = 1.0f;
  uint64_t seed = 0;  // token i uses draw i of RandomStream(seed)

  // The conditions that end the sequence.
  int64_t max_new_tokens = 16;  // >= 1
  // Ids that end the sequence in addition to the model's end-of-sequence ids.
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;

  // The numbers to report. A greedy token costs less than half without log_probs.
  bool log_probs = true;       // GeneratedTokens::log_probs
  bool raw_log_probs = false;  // GeneratedTokens::raw_log_probs
  bool ranks = false;          // GeneratedTokens::ranks
  int32_t num_log_probs = 0;   // number of alternatives per generated token
  // The distribution of the alternatives and of `ranks`. vLLM's default is kRaw.
  LogProbsMode top_log_probs_mode = LogProbsMode::kRaw;
};

enum class FinishReason {
  kStop,    // an end-of-sequence or stop id (included in the ids), or should_stop
  kLength,  // max_new_tokens
};

// Arrays that were not requested are empty.
struct GeneratedTokens {
  std::vector<int32_t> ids;  // [G], G >= 1
  // [G] log-prob of each token under softmax(processed logits / temperature), before min_p, top_k
  // and top_p truncate it; if the temperature is 0, under temperature 1. This is the behavior
  // log-prob of off-policy corrections.
  std::vector<float> log_probs;
  // [G] log-prob of each token under softmax(logits), before anything that SamplingParams changes.
  std::vector<float> raw_log_probs;
  // [G] number of ids that are at least as probable as the token, including itself; 1 is the most
  // probable.
  std::vector<int32_t> ranks;
  // [G, num_log_probs] the most probable ids, in descending order; ties go to the lower id.
  std::vector<int32_t> top_ids;
  std::vector<float> top_log_probs;  // [G, num_log_probs]
  FinishReason finish = FinishReason::kLength;
};

// At least one of `score` and `sampling` must be set.
struct InferenceRequest {
  std::string request_id;          // for logs
  std::vector<int32_t> token_ids;  // [P], P >= 1
  std::optional<ScoreParams> score;
  std::optional<SamplingParams> sampling;
  // A request that is not done at this time, queued or running, ends with DEADLINE_EXCEEDED.
  absl::Time deadline = absl::InfiniteFuture();
  // The name of the client. The work of different clients is admitted in turns, by tokens served;
  // the empty name is a client like any other.
  std::string client;
  // On the first of several sequences requested from one prompt, their number; 0 on the others.
  // Used only for metrics.
  int64_t num_choices = 1;
  // Requests share cached prefixes only if their salts are equal, so that response times reveal
  // nothing about the requests of others.
  std::string cache_salt;
  // Called for each generated token on the engine's thread. If it returns true, the token is the
  // last one, and the request finishes with kStop. Used for stop strings
  // (common/text/stop_strings.h). Optional.
  std::function<bool(int32_t token_id)> should_stop;
  // Called for each generated token on the engine's thread, after should_stop, for streaming. The
  // arrays hold everything generated so far; the new token is the last entry. If `is_last` is true,
  // the token ends the sequence, and GeneratedTokens::finish holds the reason. It must not block.
  // Optional.
  std::function<void(const GeneratedTokens& so_far, bool is_last)> on_token;
};

struct InferenceResult {
  std::optional<ScoreRows> score;
  std::optional<GeneratedTokens> generated;
  // The time until which it waited: the start of the first step that computed a part of it.
  absl::Time started_at = absl::InfinitePast();
};

using InferenceDone = std::function<void(absl::StatusOr<InferenceResult>)>;
// Requests that are submitted together.
using RequestBatch = std::vector<std::pair<InferenceRequest, InferenceDone>>;
using RequestHandle = uint64_t;  // 0 = refused

}  // namespace taopd
