// The inference engine of both programs. Scoring for the teacher is a prefill whose rows are
// reported; rollouts and evaluation are a prefill followed by decoding. One request may ask for
// both. The header includes neither LibTorch nor gRPC, so that servers and trainers can include it.
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
#pragma once

#include <algorithm>
#include <utility>

#include "common/config/kernel_mode.h"
#include "common/engine/engine_request.h"
#include "common/engine/engine_stats.h"
#include "common/memory/cuda_graph_options.h"
#include "common/memory/memory_budget.h"

namespace taopd {

struct EngineLimits {
  int64_t vocab_size = 0;     // token ids must be below this
  int64_t max_model_len = 0;  // prompt plus generated tokens
  // max_model_len for requests that generate, or less if the KV cache holds fewer tokens.
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

struct EngineOptions {
  int64_t max_model_len = 0;  // 0 = the model's max_position_embeddings
  int32_t max_logprobs = 128;
  int32_t max_candidates = 128;
  // The largest vocabulary whose dense log-probs may be requested.
  int64_t max_dense_vocab_size = 4096;
  int64_t max_num_seqs = 256;
  // The maximum number of tokens of one step. 0 means 1024 on a CPU, where activations then stay in
  // the caches, and 8192 on a GPU, which needs more rows to be busy; in both cases max_num_seqs if
  // that is larger.
  int64_t max_num_batched_tokens = 0;
  // The limit of the engine's queue. One longer request is accepted while the queue is empty.
  int64_t max_queued_tokens = 4 << 20;
  // The queue's limit in requests, because short requests have a cost too.
  int64_t max_queued_requests = 1 << 16;
  // The share of the queue, in tokens and in requests, that a client may fill while only its own
  // work waits; in (0, 1]. With more clients each may fill less (fair_share.h), so that a newcomer
  // finds room. A client without waiting work may always queue one request if it fits. Below 1, a
  // request must also leave room for shorter ones (KeptFree).
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
  // The CUDA graphs that replay decode steps. They are captured when the engine is made. With kAuto
  // the engine runs without them if that fails. UsesCudaGraphs says when they are possible.
  CudaGraphOptions cuda_graphs;
  KernelMode kernels = KernelMode::kAuto;  // for LoadEngine
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

// Thread-safe, but see Drain. While the engine yields (torch_engine.h), requests do not end, even
// if they were cancelled or their deadline has passed.
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
    RequestBatch one;
    one.emplace_back(std::move(request), std::move(done));
    return SubmitBatch(std::move(one)).front();
  }
  // Submits all requests or none of them, under one lock, so the engine sees them together and in
  // this order. For the shares of the queue they count as work of the first request's client.
  virtual std::vector<RequestHandle> SubmitBatch(RequestBatch requests) = 0;
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
