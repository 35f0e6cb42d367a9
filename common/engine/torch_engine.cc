#include "common/engine/torch_engine.h"

#include <ATen/Parallel.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/engine/engine_limits.h"
#include "common/engine/request_validation.h"
#include "common/engine/runner/model_runner.h"
#include "common/engine/scheduling/queue_limits.h"
#include "common/engine/scheduling/scheduler.h"
#include "common/engine/worker_threads.h"
#include "common/model/kernel_setup.h"
#include "common/model/torch_errors.h"
#include "kernels/torch/device_call.h"

namespace taopd {
namespace {

// The interval at which Drain polls its clock, which may be a ManualClock.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(10);

// The engine's thread waits at most this long for a mask, or for the work to which it gives way,
// before it looks again.
constexpr absl::Duration kIdleWait = absl::Milliseconds(1);

struct Finished {
  InferenceDone done;
  absl::StatusOr<InferenceResult> result;
};

void Deliver(std::vector<Finished>* finished) {
  for (Finished& item : *finished) item.done(std::move(item.result));
  finished->clear();
}

class TorchEngine final : public InferenceEngine {
 public:
  TorchEngine(std::shared_ptr<Decoder> decoder, const EngineLimits& limits,
              const QueueLimits& queue_limits, const SchedulerLimits& scheduler_limits,
              std::unique_ptr<ModelRunner> runner, Clock* clock, std::function<bool()> yields)
      : limits_(limits),
        queue_limits_(queue_limits),
        eos_token_ids_(decoder->config().eos_token_ids),
        clock_(clock),
        yields_(std::move(yields)),
        decoder_(std::move(decoder)),
        runner_(std::move(runner)),
        scheduler_(scheduler_limits) {
    stats_.graphs = runner_->graph_stats();
    thread_ = std::thread([this] { Loop(); });
  }

  ~TorchEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      refusal_ = "the engine is shutting down";
      stopping_ = true;
    }
    thread_.join();
  }

  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override {
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
      stats_.failed_requests += requests.size();
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

  void ReleaseKvCache() override {
    absl::MutexLock lock(&mutex_);
    (scheduler_.has_work() ? release_when_idle_ : release_now_) = true;
  }

  EngineLimits limits() const override { return limits_; }

  EngineStats stats() const override {
    absl::MutexLock lock(&mutex_);
    EngineStats stats = stats_;
    stats.num_waiting = scheduler_.num_waiting();
    stats.num_running = scheduler_.num_running();
    stats.queued_tokens = scheduler_.queue().num_tokens;
    stats.num_preempted = scheduler_.stats().num_preempted;
    stats.prefix_query_tokens = scheduler_.stats().prefix_query_tokens;
    stats.prefix_hit_tokens = scheduler_.stats().prefix_hit_tokens;
    stats.kv_blocks_in_use = scheduler_.pool().num_in_use();
    stats.num_kv_blocks = scheduler_.pool().num_blocks();
    if (const absl::Status health = decoder_->Health(); !health.ok()) {
      stats.device_failed = true;
      stats.device_error = std::string(health.message());
    }
    stats.kernels_left_out = NumKernelsLeftOut();
    stats.last_step = absl::FromUnixNanos(last_beat_.load(std::memory_order_relaxed));
    return stats;
  }

 private:
  // Queues all requests or none; they are moved from only on success.
  absl::Status Enqueue(RequestBatch* requests, std::vector<RequestHandle>* handles) {
    QueueLoad added = {0, static_cast<int64_t>(requests->size())};
    for (const auto& [request, done] : *requests)
      added.num_tokens += static_cast<int64_t>(request.token_ids.size());

    absl::MutexLock lock(&mutex_);
    if (!refusal_.empty()) return Unavailable(refusal_);
    if (requests->empty()) return absl::OkStatus();
    const QueueDecision decision =
        DecideQueue(queue_limits_, scheduler_.queue(),
                    scheduler_.WaitingOf(requests->front().first.client), added);
    if (!decision.status.ok()) {
      (decision.only_client_share ? stats_.refused_client_share : stats_.refused_queue_full) +=
          requests->size();
      return decision.status;
    }
    // The heartbeat's age is measured from the arrival of work.
    if (!scheduler_.has_work()) Beat();
    for (size_t i = 0; i < requests->size(); ++i) {
      auto& [request, done] = (*requests)[i];
      (*handles)[i] = next_handle_++;
      scheduler_.Add(std::make_unique<Sequence>((*handles)[i], std::move(request), std::move(done),
                                                eos_token_ids_));
    }
    return absl::OkStatus();
  }

  // The functions below run on the engine's thread.

  // One round of the engine's thread.
  struct Turn {
    StepPlan plan;
    std::vector<Finished> dropped;
    bool releases_pages = false;
    bool is_last = false;
  };

  void Loop() {
    at::init_num_threads();  // at::set_num_threads reaches a new thread only through this
    const c10::InferenceMode inference_mode;
    for (bool is_last = false; !is_last;) {
      Turn turn = NextTurn();
      is_last = turn.is_last;
      Deliver(&turn.dropped);
      if (turn.releases_pages) runner_->ReleasePages();
      if (!turn.plan.empty()) {
        RunStep(turn.plan);
      } else if (turn.plan.waiting_for_mask != nullptr) {
        // Nothing else can run. New work waits for this as well, so the wait is short.
        turn.plan.waiting_for_mask->WaitsForMask(kIdleWait);
      }
      if (EndTurnAndSeeIfIdle()) ReleaseWorkerThreads();
    }
  }

  // Waits for work, and decides what is done of it.
  Turn NextTurn() {
    absl::MutexLock lock(&mutex_);
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || release_now_ || release_when_idle_ || scheduler_.has_work();
    };
    mutex_.Await(absl::Condition(&has_work));
    YieldToOtherWork();
    Beat();
    if (stopping_ || aborting_)
      scheduler_.DropAll(Unavailable(refusal_, ", and the request was not done"));
    scheduler_.DropExpired(clock_->Now());
    Turn turn;
    turn.is_last = stopping_;
    turn.releases_pages = release_now_ || (release_when_idle_ && !scheduler_.has_work());
    if (turn.releases_pages) {
      scheduler_.ReleaseCache();
      release_now_ = release_when_idle_ = false;
    }
    scheduler_.SetWeightVersion(decoder_->weight_version());
    turn.plan = scheduler_.Schedule();
    NoteStart(turn.plan);
    for (auto& [sequence, status] : scheduler_.TakeDropped()) {
      ++stats_.failed_requests;
      turn.dropped.push_back({std::move(sequence->done), status});
    }
    delivering_ = true;
    return turn;
  }

  bool EndTurnAndSeeIfIdle() {
    absl::MutexLock lock(&mutex_);
    delivering_ = false;
    return !scheduler_.has_work();
  }

  // Waits while other work goes first, unless there is nothing to compute.
  void YieldToOtherWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!yields_) return;
    const auto ends = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || aborting_ || !scheduler_.has_work();
    };
    while (!ends() && yields_()) {
      ReleaseWorkerThreads();
      Beat();
      mutex_.AwaitWithTimeout(absl::Condition(&ends), kIdleWait);
    }
  }

  void NoteStart(const StepPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (plan.empty()) return;
    const absl::Time now = clock_->Now();
    int64_t num_tokens = 0;
    for (const ScheduledRows& rows : plan.rows) {
      num_tokens += rows.count;
      // Later starts, after a preemption, are not recorded.
      if (rows.sequence->started_at == absl::InfinitePast()) rows.sequence->started_at = now;
      for (Sequence* follower : rows.followers) {
        if (follower->started_at == absl::InfinitePast())
          follower->started_at = rows.sequence->started_at;
      }
    }
    stats_.step_sizes.Add(num_tokens);
  }

  // One forward pass and what follows from it. The pass runs without the lock, because a stuck
  // device must not block stats().
  void RunStep(const StepPlan& plan) {
    const absl::Status device_failure = runner_->Run(plan, [this] { Beat(); });
    std::vector<Finished> finished;
    {
      absl::MutexLock lock(&mutex_);
      scheduler_.Advance(plan);
      stats_.layer_seconds = absl::ToDoubleSeconds(runner_->times().layers);
      stats_.head_seconds = absl::ToDoubleSeconds(runner_->times().head);
      stats_.graphs = runner_->graph_stats();
      CountTokens(plan);
      for (const ScheduledRows& rows : plan.rows) {
        for (Sequence* sequence : rows.followers) {
          if (sequence->finished) finished.push_back(FinishSequence(sequence));
        }
        if (rows.sequence->finished) finished.push_back(FinishSequence(rows.sequence));
      }
      if (!device_failure.ok()) MarkDeviceFailed(device_failure);
    }
    // Deliver after the counters, so that a caller who sees the last result sees an idle engine.
    Deliver(&finished);
  }

  // Refuses new work and drops what was accepted.
  void MarkDeviceFailed(const absl::Status& failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    refusal_ = "the device failed and needs a new process";
    stats_.device_failed = true;
    stats_.device_error = DeviceFailureText(std::string(failure.message()));
    if (decoder_->Health().ok()) stats_.device_kernel = std::string(LastDeviceKernel());
    aborting_ = true;
  }

  // Updates the heartbeat. It is called whenever work progresses; in a forward pass, once per layer
  // by the thread that computes the first rows.
  void Beat() { last_beat_.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed); }

  // Called after Advance. A prompt is counted once, when it is done.
  void CountTokens(const StepPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto count = [this](const Sequence& sequence, bool samples) {
      if (!sequence.status.ok() || sequence.mask_was_late) return;
      const bool prompt_done =
          samples ? sequence.generated.ids.size() == 1 : !sequence.generates() && sequence.finished;
      if (prompt_done) {
        stats_.prompt_tokens += sequence.num_prompt_tokens();
        if (sequence.scores()) stats_.scored_rows += sequence.score->num_rows;
      }
      stats_.generated_tokens += samples;
    };
    for (const ScheduledRows& rows : plan.rows) {
      count(*rows.sequence, rows.samples);
      for (const Sequence* follower : rows.followers) count(*follower, /*samples=*/true);
    }
  }

  Finished FinishSequence(Sequence* sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::unique_ptr<Sequence> owned = scheduler_.Finish(sequence);
    if (!owned->status.ok()) {
      ++stats_.failed_requests;
      return {std::move(owned->done), owned->status};
    }
    ++stats_.finished_requests;
    InferenceResult result;
    result.started_at = owned->started_at;
    result.score = std::move(owned->score);
    if (owned->generates()) result.generated = std::move(owned->generated);
    return {std::move(owned->done), std::move(result)};
  }

  const EngineLimits limits_;
  const QueueLimits queue_limits_;
  const std::vector<int32_t> eos_token_ids_;
  Clock* const clock_;
  const std::function<bool()> yields_;  // may be null
  const std::shared_ptr<Decoder> decoder_;
  const std::unique_ptr<ModelRunner> runner_;  // used by the engine's thread only
  std::atomic<int64_t> last_beat_{0};          // Unix time in nanoseconds

  mutable absl::Mutex mutex_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);    // if not empty, why new work is UNAVAILABLE
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // the object is being destroyed
  // Drain's deadline has passed, or the device has failed: accepted work is UNAVAILABLE, too.
  bool aborting_ ABSL_GUARDED_BY(mutex_) = false;
  // Results of the current step may not have been delivered yet.
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  RequestHandle next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  // The members that the engine itself counts; stats() adds the others.
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  // Set by ReleaseKvCache: release_now_ if there is no work, else release_when_idle_. Nothing runs
  // while release_now_ is set, because the engine's thread checks it before it admits work.
  bool release_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool release_when_idle_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // uses all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeTorchEngine(
    std::shared_ptr<Decoder> decoder, const EngineOptions& options, Clock* clock,
    std::unique_ptr<GraphBackend> graphs, std::function<bool()> yields) {
  TAOPD_RETURN_IF_ERROR(ValidateEngineOptions(options));
  const ModelConfig& config = decoder->config();
  if (options.max_model_len > config.max_position_embeddings) {
    return InvalidArgument("max_model_len ", options.max_model_len,
                           " exceeds the model's max_position_embeddings ",
                           config.max_position_embeddings);
  }
  const int64_t max_model_len =
      options.max_model_len > 0 ? options.max_model_len : config.max_position_embeddings;

  TAOPD_ASSIGN_OR_RETURN(const KvPoolSize pool, PoolSizeOf(*decoder, options, max_model_len));
  const EngineLimits limits = LimitsOf(*decoder, options, max_model_len, pool);

  const SchedulerLimits scheduler_limits = {.max_num_seqs = options.max_num_seqs,
                                            .num_blocks = pool.num_blocks,
                                            .block_tokens = kBlockTokens,
                                            .max_num_batched_tokens = limits.max_num_batched_tokens,
                                            .prefix_caching = options.prefix_caching};

  TAOPD_ASSIGN_OR_RETURN(
      std::unique_ptr<DecodeGraphs> decode_graphs,
      MakeDecodeGraphs(decoder, options, limits, pool.num_blocks, std::move(graphs)));
  auto runner = std::make_unique<ModelRunner>(
      decoder, pool.num_blocks, options.HeadWorkspaceBytes(decoder->device().is_cpu()),
      std::move(decode_graphs), clock);
  const absl::Status captured = CatchTorchErrors([&] { runner->CaptureGraphs(); });
  if (!captured.ok() && options.cuda_graphs.use == CudaGraphUse::kAuto) {
    LogError("capturing CUDA graphs failed; decoding does without them",
             {{"error", captured.message()}});
    runner->DropGraphs();
  } else {
    TAOPD_RETURN_IF_ERROR(Annotate(captured, "capturing CUDA graphs"));
  }
  return std::unique_ptr<InferenceEngine>(std::make_unique<TorchEngine>(
      std::move(decoder), limits,
      QueueLimits{options.max_queued_tokens, options.max_queued_requests,
                  options.max_client_queue_share},
      scheduler_limits, std::move(runner), clock, std::move(yields)));
}

}  // namespace taopd
