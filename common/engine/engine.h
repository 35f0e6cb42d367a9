// The inference engine of both programs. Scoring for the teacher is a prefill whose rows are
// reported; rollouts and evaluation are a prefill followed by decoding. One request may ask for
// both.
//
// This header includes neither LibTorch nor gRPC, so that servers and trainers can include it.
//
// Life cycle of a request: Submit validates and queues it, the engine's thread runs it in batches,
// and `done` receives its result exactly once. `done` is called on the engine's thread, or inside
// Submit if the request is refused. It may call only Submit and Cancel of the engine. It must not
// block, because all sequences of the engine wait for it. It may compute for a short time: the
// trainer decodes and grades a response in it.
//
// Determinism: On a CPU the answer to a request has the same bytes whatever else the engine
// computes. On CUDA the last bits may depend on the rest of the batch. CONTRACT.md lists everything
// that may change a number.
//
// Shapes: P prompt tokens, R scored rows, k reported ids per row, M candidates per row, V
// vocabulary size, G generated tokens.
#pragma once

#include <absl/time/time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/engine/sampling/logit_bias.h"
#include "common/memory/cuda_graph_options.h"
#include "common/memory/memory_budget.h"

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
  // The time at which the request stopped waiting: the start of the first step that computed a part
  // of it.
  absl::Time started_at = absl::InfinitePast();
};

using InferenceDone = std::function<void(absl::StatusOr<InferenceResult>)>;

struct EngineLimits {
  int64_t vocab_size = 0;     // token ids must be below this
  int64_t max_model_len = 0;  // prompt plus generated tokens
  // The limit of requests that generate. It is below max_model_len if the KV cache is too
  // small for one sequence of that length.
  int64_t max_generation_len = INT64_MAX;
  int32_t max_logprobs = 0;  // largest top_k and num_log_probs; at most vocab_size
  int32_t max_candidates = 0;
  // ScoreParams::dense is refused if the vocabulary is larger.
  int64_t max_dense_vocab_size = 0;
  int64_t max_num_seqs = 0;            // sequences that run at once
  int64_t max_num_batched_tokens = 0;  // tokens of one step
  int64_t max_queued_tokens = 0;
  // The limit for the sequences of one SubmitBatch call: a client's share of the queue.
  int64_t max_client_queued_tokens = INT64_MAX;
  // False if the KV cache has no memory; the engine then only scores.
  bool can_generate = true;
  int64_t kv_block_tokens = 0;  // tokens of one block of the KV cache
  bool prefix_caching = false;
};

// A histogram of the number of tokens of the engine's steps.
struct StepSizes {
  // counts[i] steps had at most kBounds[i] tokens and more than the previous bound; the last count
  // is for steps beyond all bounds.
  static constexpr std::array<int64_t, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                      512, 1024, 2048, 4096, 8192, 16384};
  std::array<uint64_t, kBounds.size() + 1> counts = {};
  uint64_t num_tokens = 0;  // sum over all steps

  void Add(int64_t tokens) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), tokens);
    ++counts[static_cast<size_t>(bound - kBounds.begin())];
    num_tokens += static_cast<uint64_t>(tokens);
  }
};

// Decode steps of an engine with CUDA graphs (EngineOptions::cuda_graphs); all 0 without.
struct GraphStats {
  int64_t num_graphs = 0;  // at present, one per batch size
  // Counted since the start:
  uint64_t num_captures = 0;  // captures of a whole set: at the start, and when it became unusable
  uint64_t replayed_steps = 0;
  uint64_t padding_rows = 0;  // rows computed by replayed steps and discarded
  uint64_t eager_steps = 0;  // steps with a prompt, larger than all graphs or with longer sequences
};

struct EngineStats {
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  int64_t queued_tokens = 0;
  // Counted since the start:
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t scored_rows = 0;
  uint64_t finished_requests = 0;
  uint64_t failed_requests = 0;  // including refused requests
  uint64_t refused_queue_full = 0;
  uint64_t refused_client_share = 0;  // the queue had room, but not for this client
  uint64_t num_preempted = 0;         // sequences that lost their keys and values
  // Tokens looked up and tokens found in the prefix cache.
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  StepSizes step_sizes;
  // Seconds that the engine's thread spent in the layers, and in the stages after them (the head,
  // scores, sampling). A GPU computes while the thread continues, so there head_seconds includes
  // the wait for both.
  double layer_seconds = 0.0;
  double head_seconds = 0.0;
  GraphStats graphs;
  // At present:
  int64_t kv_blocks_in_use = 0;
  int64_t num_kv_blocks = 0;
  // The device refuses to compute; the process must be restarted.
  bool device_failed = false;
  std::string device_error;  // empty if the reason is not known
  // If the device itself failed, the custom kernel that was launched last, or "none". Empty if it
  // did not fail, or if another process of the model was lost.
  std::string device_kernel;
  // The custom kernels that the check at the start has left out (common/model/kernel_setup.h).
  int64_t kernels_left_out = 0;
  // The time of the last heartbeat, which is also updated during a step. If it is old while work
  // waits, the engine is stalled.
  absl::Time last_step;
};

struct EngineOptions {
  int64_t max_model_len = 0;  // 0 = the model's max_position_embeddings
  int32_t max_logprobs = 128;
  int32_t max_candidates = 128;
  // The largest vocabulary whose dense log-probs may be requested.
  int64_t max_dense_vocab_size = 4096;
  int64_t max_num_seqs = 256;
  // The maximum number of tokens of one step. 0 means max_num_seqs or, if that is more, 1024 on a
  // CPU, whose activations then stay in its caches, and 8192 on a GPU, which needs more rows to be
  // busy.
  int64_t max_num_batched_tokens = 0;
  // The limit of the queue in front of the engine. One longer request is accepted while the queue
  // is empty.
  int64_t max_queued_tokens = 4 << 20;
  // The queue's limit in requests, because short requests have a cost too.
  int64_t max_queued_requests = 1 << 16;
  // The share of the queue, in tokens and in requests, that one client may fill while no other
  // client's work waits; in (0, 1]. With more clients each may fill less (fair_share.h), so that a
  // newcomer finds room. A client without waiting work may always queue one request if it fits.
  // Below 1, a request must also leave room for shorter ones (KeptFree).
  double max_client_queue_share = 1.0;
  // The limit of the memory for the logits of one chunk of rows; the logits of a whole batch never
  // exist at once. 0 means 64 MiB on a CPU and 256 MiB on a GPU. On a CPU a chunk is further
  // limited to fit in the caches (taopd/head/logit_chunk.h).
  int64_t head_workspace_bytes = 0;
  // The limit of the KV cache's memory. If it does not hold all running sequences, some of them are
  // preempted and computed again. If it is too small for one sequence, the length of requests that
  // generate is limited, with a warning; with an explicit max_model_len the options are refused
  // instead. 0 means that the engine only scores. kAutoKvCache (common/memory/engine_plan.h), which
  // LoadEngine accepts, leaves the size to the memory plan.
  int64_t kv_cache_bytes = int64_t{4} << 30;
  // If true, requests reuse the keys and values of earlier requests with the same prefix.
  bool prefix_caching = true;
  // The number of processes, and on CUDA of devices, over which LoadEngine splits the model
  // (common/model/config/tensor_parallel.h). All memory limits above apply to each of them.
  int64_t tensor_parallel_size = 1;
  // The CUDA graphs from which decode steps are replayed. The engine captures them when it is made.
  // With kAuto it does without them if that fails. UsesCudaGraphs says when they are possible.
  CudaGraphOptions cuda_graphs;
  // One of KernelModes() (common/config/kernel_mode.h), for LoadEngine.
  std::string kernels = "auto";
  // The part of the device's memory that LoadEngine's memory plan may use.
  MemoryLimits memory;

  // The settings above, resolved for a kind of device.
  int64_t BatchedTokens(bool on_cpu) const {
    if (max_num_batched_tokens > 0) return max_num_batched_tokens;
    return std::max<int64_t>(max_num_seqs, on_cpu ? 1024 : 8192);
  }
  int64_t HeadWorkspaceBytes(bool on_cpu) const {
    if (head_workspace_bytes > 0) return head_workspace_bytes;
    return int64_t{on_cpu ? 64 : 256} << 20;
  }
};

using RequestHandle = uint64_t;  // 0 = refused

// Thread-safe, but see Drain. While it yields (torch_engine.h), no cancelled or late request ends.
class InferenceEngine {
 public:
  virtual ~InferenceEngine() = default;

  // Never blocks. If the request is refused, `done` receives the reason before Submit returns, and
  // the handle is 0:
  //   INVALID_ARGUMENT     the request is malformed or exceeds a limit
  //   FAILED_PRECONDITION  the request generates and the engine only scores
  //   RESOURCE_EXHAUSTED   the queue is full, or the client's share of it is
  //   UNAVAILABLE          Drain was called, the device failed, or the engine is being destroyed
  RequestHandle Submit(InferenceRequest request, InferenceDone done) {
    std::vector<std::pair<InferenceRequest, InferenceDone>> one;
    one.emplace_back(std::move(request), std::move(done));
    return SubmitBatch(std::move(one)).front();
  }
  // Submits all requests or none of them, under one lock, so the engine sees them together and in
  // this order. For the shares of the queue they count as work of the first request's client.
  virtual std::vector<RequestHandle> SubmitBatch(
      std::vector<std::pair<InferenceRequest, InferenceDone>> requests) = 0;
  // Ends a request with CANCELLED soon, unless it has finished. Unknown handles are ignored.
  virtual void Cancel(RequestHandle handle) = 0;
  // Refuses new work, and returns when all accepted work is done or at `deadline`, whichever comes
  // first; unfinished requests then end with UNAVAILABLE. Must not be called on the engine's
  // thread.
  virtual void Drain(absl::Time deadline) = 0;

  // Frees the memory of the KV cache as soon as no work is left, and forgets all cached prefixes.
  // The memory is allocated again when a request needs it. Tensor parallel workers keep theirs.
  virtual void ReleaseKvCache() = 0;

  virtual EngineLimits limits() const = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace taopd
