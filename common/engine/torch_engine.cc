#include "common/engine/torch_engine.h"

#include <ATen/Parallel.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/engine/request_validation.h"
#include "common/engine/runner/model_runner.h"
#include "common/engine/scheduling/scheduler.h"

namespace taopd {
namespace {

// How often Drain polls its clock, which may be a ManualClock.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(10);

struct Finished {
  InferenceDone done;
  absl::StatusOr<InferenceResult> result;
};

// Runs `step` and turns what LibTorch throws into a status.
template <typename Step>
absl::Status Guarded(const Step& step) {
  try {
    step();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    return Internal("the model failed: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Internal("the model failed: ", error.what());
  }
}

void Deliver(std::vector<Finished>* finished) {
  for (Finished& item : *finished) item.done(std::move(item.result));
  finished->clear();
}

class TorchEngine final : public InferenceEngine {
 public:
  TorchEngine(std::shared_ptr<Decoder> decoder, const EngineLimits& limits,
              int64_t max_queued_requests, const SchedulerLimits& scheduler_limits,
              const ModelRunnerOptions& runner_options, Clock* clock)
      : limits_(limits),
        max_queued_requests_(max_queued_requests),
        eos_token_ids_(decoder->config().eos_token_ids),
        clock_(clock),
        runner_(std::move(decoder), runner_options),
        scheduler_(scheduler_limits),
        thread_([this] { Loop(); }) {}

  ~TorchEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      refusal_ = "the engine is shutting down";
      stopping_ = true;
    }
    thread_.join();
  }

  RequestHandle Submit(InferenceRequest request, InferenceDone done) override {
    std::vector<std::pair<InferenceRequest, InferenceDone>> requests;
    requests.emplace_back(std::move(request), std::move(done));
    return SubmitBatch(std::move(requests)).front();
  }

  std::vector<RequestHandle> SubmitBatch(
      std::vector<std::pair<InferenceRequest, InferenceDone>> requests) override {
    std::vector<RequestHandle> handles(requests.size(), 0);
    size_t culprit = 0;
    absl::Status refusal;
    for (size_t i = 0; i < requests.size() && refusal.ok(); ++i) {
      refusal = ValidateRequest(requests[i].first, limits_);
      culprit = i;
    }
    if (refusal.ok()) refusal = Enqueue(&requests, &handles);
    if (refusal.ok()) return handles;

    {
      absl::MutexLock lock(&mutex_);
      failed_requests_ += requests.size();
    }
    const bool invalid = absl::IsInvalidArgument(refusal) || absl::IsFailedPrecondition(refusal);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].second(
          invalid && i != culprit
              ? Annotate(refusal, Concat("request ", culprit, " of the same batch was refused"))
              : refusal);
    }
    return handles;
  }

  void Cancel(RequestHandle handle) override {
    absl::MutexLock lock(&mutex_);
    scheduler_.Cancel(handle);
  }

  void Drain(absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    if (refusal_.empty()) refusal_ = "the engine is draining";
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !scheduler_.has_work() && !delivering_;
    };
    while (!mutex_.AwaitWithTimeout(absl::Condition(&idle), kDrainPoll)) {
      if (clock_->Now() >= deadline) {
        aborting_ = true;
        return;
      }
    }
  }

  EngineLimits limits() const override { return limits_; }

  EngineStats stats() const override {
    absl::MutexLock lock(&mutex_);
    EngineStats stats;
    stats.num_waiting = scheduler_.num_waiting();
    stats.num_running = scheduler_.num_running();
    stats.queued_tokens = scheduler_.queued_tokens();
    stats.prompt_tokens = prompt_tokens_;
    stats.generated_tokens = generated_tokens_;
    stats.scored_rows = scored_rows_;
    stats.finished_requests = finished_requests_;
    stats.failed_requests = failed_requests_;
    stats.last_step = last_step_;
    return stats;
  }

 private:
  using Requests = std::vector<std::pair<InferenceRequest, InferenceDone>>;

  // All or nothing; the requests are taken only on success.
  absl::Status Enqueue(Requests* requests, std::vector<RequestHandle>* handles) {
    int64_t num_tokens = 0;
    for (const auto& [request, done] : *requests)
      num_tokens += static_cast<int64_t>(request.token_ids.size());
    const int64_t num_requests = static_cast<int64_t>(requests->size());

    absl::MutexLock lock(&mutex_);
    if (!refusal_.empty()) return Unavailable(refusal_);
    const int64_t queued_tokens = scheduler_.queued_tokens();
    const bool alone = num_requests == 1 && scheduler_.num_waiting() == 0;
    if (!alone && queued_tokens + num_tokens > limits_.max_queued_tokens) {
      return ResourceExhausted("the queue holds ", queued_tokens, " tokens: ", num_tokens,
                               " more exceed max_queued_tokens ", limits_.max_queued_tokens);
    }
    if (scheduler_.num_waiting() + num_requests > max_queued_requests_) {
      return ResourceExhausted("the queue holds ", scheduler_.num_waiting(),
                               " requests: ", num_requests, " more exceed max_queued_requests ",
                               max_queued_requests_);
    }
    // The age of the heartbeat counts from when there is work.
    if (!scheduler_.has_work()) last_step_ = clock_->Now();
    for (size_t i = 0; i < requests->size(); ++i) {
      auto& [request, done] = (*requests)[i];
      (*handles)[i] = next_handle_++;
      scheduler_.Add(std::make_unique<Sequence>((*handles)[i], std::move(request), std::move(done),
                                                eos_token_ids_));
    }
    return absl::OkStatus();
  }

  // The functions below run on the engine's thread.

  void Loop() {
    at::init_num_threads();  // at::set_num_threads reaches a new thread only through this
    const c10::InferenceMode inference_mode;
    while (true) {
      StepPlan plan;
      std::vector<Finished> dropped;
      bool stopped = false;
      {
        absl::MutexLock lock(&mutex_);
        const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || scheduler_.has_work();
        };
        mutex_.Await(absl::Condition(&has_work));
        last_step_ = clock_->Now();
        stopped = stopping_;
        if (stopping_)
          scheduler_.DropAll(Unavailable("the engine was shut down before the request was done"));
        if (aborting_)
          scheduler_.DropAll(Unavailable("the engine was drained before the request was done"));
        scheduler_.DropExpired(last_step_);
        plan = scheduler_.Schedule();
        for (auto& [sequence, status] : scheduler_.TakeDropped()) {
          ++failed_requests_;
          dropped.push_back({std::move(sequence->done), status});
        }
        delivering_ = true;
      }
      Deliver(&dropped);
      Run(plan.scores, &ModelRunner::Score);
      Run(plan.prefills, &ModelRunner::Prefill);
      Run(plan.decodes, &ModelRunner::Decode);
      {
        absl::MutexLock lock(&mutex_);
        delivering_ = false;
      }
      if (stopped) return;
    }
  }

  // One forward pass with what follows from it. An exception fails its sequences and no others.
  void Run(const std::vector<Sequence*>& sequences,
           void (ModelRunner::*part)(const std::vector<Sequence*>&)) {
    if (sequences.empty()) return;
    const bool decode = part == &ModelRunner::Decode;
    absl::Status failure = Guarded([&] { (runner_.*part)(sequences); });
    std::vector<Sequence*> failed;
    for (Sequence* sequence : sequences) {
      if (!failure.ok() || !sequence->status.ok()) failed.push_back(sequence);
    }
    if (!failed.empty()) {
      const absl::Status cleared = Guarded([&] { runner_.ClearSlots(failed); });
      if (failure.ok()) failure = cleared;
    }
    if (!failure.ok()) {
      LogError("engine step failed", {{"num_requests", sequences.size()}, {"error", failure}});
    }

    std::vector<Finished> finished;
    {
      absl::MutexLock lock(&mutex_);
      last_step_ = clock_->Now();
      for (Sequence* sequence : sequences) {
        if (!failure.ok()) {
          sequence->status = failure;
          sequence->finished = true;
        } else {
          if (!decode) prompt_tokens_ += sequence->num_prompt_tokens();
          if (!decode && sequence->score) scored_rows_ += sequence->score->num_rows;
          if (sequence->generates() && sequence->status.ok()) ++generated_tokens_;
        }
        if (sequence->finished) finished.push_back(Take(sequence));
      }
    }
    // After the counters: whoever sees the last result sees an idle engine.
    Deliver(&finished);
  }

  Finished Take(Sequence* sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::unique_ptr<Sequence> owned = scheduler_.Finish(sequence);
    if (!owned->status.ok()) {
      ++failed_requests_;
      return {std::move(owned->done), owned->status};
    }
    ++finished_requests_;
    InferenceResult result;
    result.score = std::move(owned->score);
    if (owned->generates()) result.generated = std::move(owned->generated);
    return {std::move(owned->done), std::move(result)};
  }

  const EngineLimits limits_;
  const int64_t max_queued_requests_;
  const std::vector<int32_t> eos_token_ids_;
  Clock* const clock_;
  ModelRunner runner_;  // used by the engine's thread only

  mutable absl::Mutex mutex_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);    // if not empty, why new work is UNAVAILABLE
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // the object is being destroyed
  bool aborting_ ABSL_GUARDED_BY(mutex_) = false;  // Drain's deadline has passed
  // Results of the present step may not have been delivered yet.
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  RequestHandle next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generated_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t scored_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_step_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  std::thread thread_;  // last: it uses all of the above
};

struct CachePlan {
  int64_t num_slots = 0;  // 0: the engine only scores
  int64_t tokens_per_slot = 0;
};

// As many sequences of max_model_len as the cache holds. Where it does not hold one, a length that
// nobody asked for is cut to what fits.
absl::StatusOr<CachePlan> PlanCache(const Decoder& decoder, const EngineOptions& options,
                                    int64_t max_model_len) {
  if (options.kv_cache_bytes == 0) return CachePlan{0, max_model_len};
  const auto size_bytes = [&](int64_t num_tokens) {
    return KvCache::SizeBytes(decoder.config(), /*num_slots=*/1, num_tokens, decoder.dtype());
  };
  const int64_t num_slots =
      std::min(options.max_num_seqs, options.kv_cache_bytes / size_bytes(max_model_len));
  if (num_slots > 0) return CachePlan{num_slots, max_model_len};
  const int64_t num_tokens = options.kv_cache_bytes / size_bytes(1);
  if (options.max_model_len > 0 || num_tokens < 1) {
    return InvalidArgument("kv_cache_bytes ", options.kv_cache_bytes,
                           " holds no sequence of max_model_len ", max_model_len, ", which takes ",
                           size_bytes(max_model_len),
                           " bytes: give the KV cache more memory, or lower max_model_len");
  }
  LogWarning(
      "the KV cache is too small for one sequence of the model's length: generation is limited",
      {{"max_model_len", max_model_len},
       {"max_generation_len", num_tokens},
       {"kv_cache_bytes", options.kv_cache_bytes},
       {"bytes_of_max_model_len", size_bytes(max_model_len)}});
  return CachePlan{1, num_tokens};
}

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeTorchEngine(std::shared_ptr<Decoder> decoder,
                                                                 const EngineOptions& options,
                                                                 Clock* clock) {
  TAOPD_RETURN_IF_ERROR(ValidateEngineOptions(options));
  const ModelConfig& config = decoder->config();
  if (options.max_model_len > config.max_position_embeddings) {
    return InvalidArgument("max_model_len ", options.max_model_len,
                           " exceeds the model's max_position_embeddings ",
                           config.max_position_embeddings);
  }
  const int64_t max_model_len =
      options.max_model_len > 0 ? options.max_model_len : config.max_position_embeddings;

  TAOPD_ASSIGN_OR_RETURN(const CachePlan cache, PlanCache(*decoder, options, max_model_len));

  EngineLimits limits;
  limits.vocab_size = config.vocab_size;
  limits.max_model_len = max_model_len;
  limits.max_generation_len = cache.tokens_per_slot;
  limits.max_logprobs =
      static_cast<int32_t>(std::min<int64_t>(options.max_logprobs, config.vocab_size));
  limits.max_candidates = options.max_candidates;
  limits.max_dense_vocab_size = options.max_dense_vocab_size;
  limits.max_num_seqs = cache.num_slots > 0 ? cache.num_slots : options.max_num_seqs;
  limits.max_queued_tokens = options.max_queued_tokens;
  limits.can_generate = cache.num_slots > 0;

  SchedulerLimits scheduler_limits;
  scheduler_limits.max_num_seqs = options.max_num_seqs;
  scheduler_limits.num_slots = cache.num_slots;
  scheduler_limits.max_num_batched_tokens = options.max_num_batched_tokens;
  // On the CPU a matrix product may round a row differently when it has more rows.
  scheduler_limits.batch_scores = !decoder->device().is_cpu();

  ModelRunnerOptions runner_options;
  runner_options.num_slots = cache.num_slots;
  runner_options.tokens_per_slot = cache.tokens_per_slot;
  runner_options.head_workspace_bytes = options.head_workspace_bytes;
  return std::unique_ptr<InferenceEngine>(
      std::make_unique<TorchEngine>(std::move(decoder), limits, options.max_queued_requests,
                                    scheduler_limits, runner_options, clock));
}

}  // namespace taopd
