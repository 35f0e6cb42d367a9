// The state that the protocols share: the model once it is loaded, whether work is accepted, and
// the memory of messages.
//
// Life cycle: loading -> ready -> leaving -> draining, or loading -> failed. While it is leaving,
// the server still accepts work, so that load balancers have time to notice that it is not ready.
//
// Thread-safe. A model stays valid while its shared_ptr is held. The engine's own thread must not
// release the last reference, because destroying an engine joins that thread.
#pragma once

#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/engine/engine.h"
#include "common/engine/engine_weights.h"
#include "common/text/chat/chat_template.h"
#include "common/text/tokenizer/tokenizer.h"
#include "server/net/client_name.h"
#include "server/options/tool_call_format.h"
#include "server/serving/byte_budget.h"
#include "server/serving/heap_trim.h"
#include "server/serving/parse_turns.h"
#include "server/structured/grammar_compiler.h"

namespace taopd {

struct ServedModel {
  // Shared by the versions of a model whose weights are replaced (policy/policy_updates.h).
  std::shared_ptr<InferenceEngine> engine;
  std::shared_ptr<Tokenizer> tokenizer;               // null if only token ids are accepted
  std::shared_ptr<GrammarCompiler> grammar_compiler;  // null without a tokenizer
  std::shared_ptr<const ChatTemplate> chat_template;  // null if the model has none
  std::shared_ptr<EngineWeights> weights;             // null if they stay as they are
  std::string tokenizer_config_json;                  // tokenizer_config.json, or empty
  std::string model_config_json;                      // config.json, or empty
  std::string name;
  std::string root;  // the model's directory
  std::string revision;
  // The name of the weights in answers over HTTP; before weights are set, SGLang's word.
  std::string weight_version = "default";
  std::string dtype;
  std::string device = "cpu";        // in LibTorch's notation
  int64_t tensor_parallel_size = 1;  // number of processes over which the model is split
  EngineLimits limits;
  SamplingParams sampling_defaults;    // for fields that a request does not set
  std::vector<int32_t> eos_token_ids;  // the ids that end a sequence
  // The ids that end a sequence besides the tokenizer's eos_token. Answers name them as the stop
  // reason, as vLLM's do.
  std::vector<int32_t> further_eos_ids;
  ToolCallFormat tool_call_format = ToolCallFormat::kNone;
  std::string config_json;  // the effective settings, without secrets
  int64_t created_unix_s = 0;
};

class ServingState {
 public:
  ServingState(Clock* clock, absl::Duration stall_timeout,
               int64_t max_message_bytes = int64_t{4} << 30, double max_client_share = 1.0)
      : clock_(clock),
        stall_timeout_(stall_timeout),
        message_budget_(max_message_bytes, max_client_share) {}

  // Also clears the error of SetWeightsDamaged.
  void SetReady(std::shared_ptr<const ServedModel> model) {
    absl::MutexLock lock(&mutex_);
    model_ = std::move(model);
    weights_damage_ = absl::OkStatus();
  }
  // Records that a replacement of the weights has failed half-way: no version is served until the
  // next SetReady. Admit still returns the model, because a trainer asks for facts about it before
  // it sets weights again; the model's engine refuses work by itself.
  void SetWeightsDamaged(const absl::Status& error) {
    absl::MutexLock lock(&mutex_);
    weights_damage_ = error;
  }
  void SetLeaving() {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
  }
  void SetDraining() {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  void SetFailed(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    failure_ = status;
  }
  // Sets the canary's verdict on the model (canary.h). While it is not OK, no work is accepted,
  // because wrong scores are worse than none.
  void SetCanary(const absl::Status& verdict) {
    absl::MutexLock lock(&mutex_);
    canary_ = verdict;
  }
  // Sets whether the listeners still answer the server's own connections.
  void SetListeners(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    listeners_ = status;
  }

  // Returns the model for a new request, or UNAVAILABLE with the reason if no work is accepted.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Admit() const;
  // Returns the model in any state, or null until it is loaded.
  std::shared_ptr<const ServedModel> model() const {
    absl::ReaderMutexLock lock(&mutex_);
    return model_;
  }

  // Returns OK while the server has a model and works. Returns UNAVAILABLE while it is loading,
  // draining or failed, if the device refuses to compute, if a listener no longer answers, and if
  // work has waited for `stall_timeout` without a heartbeat of the engine, which also beats during
  // a long step. Call it at least every few seconds, because that time counts from the first call
  // that saw the last beat.
  absl::Status Health() {
    absl::MutexLock lock(&mutex_);
    return HealthLocked();
  }
  // Returns OK unless the process should be started again: UNAVAILABLE if the device, a listener or
  // the engine has failed as described at Health. Loading and draining are not reasons.
  absl::Status Alive() {
    absl::MutexLock lock(&mutex_);
    return AliveLocked();
  }
  // Returns OK if the server should get work: it is healthy, it is not leaving, its weights are
  // whole, and its canary is right.
  absl::Status Ready();
  // Returns whether the last replacement of the weights has failed half-way.
  bool are_weights_damaged() const {
    absl::ReaderMutexLock lock(&mutex_);
    return !weights_damage_.ok();
  }
  // Returns the canary's last verdict, or OK before the first.
  absl::Status canary() const {
    absl::ReaderMutexLock lock(&mutex_);
    return canary_;
  }
  // Counts the canary's wrong answers that the next answer did not confirm.
  void CountCanaryRecovery() { num_canary_recovered_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t num_canary_recovered() const {
    return num_canary_recovered_.load(std::memory_order_relaxed);
  }
  // Returns the seconds since the engine's last heartbeat, or 0 while it is idle or not loaded.
  double HeartbeatAgeSeconds() {
    absl::MutexLock lock(&mutex_);
    return absl::ToDoubleSeconds(HeartbeatAgeLocked());
  }

  // Returns the proxies that are trusted to report a client's address. Set them before the server
  // listens.
  TrustedProxies& trusted_proxies() { return trusted_proxies_; }

  // Returns the budget for all request bodies and answers. Every protocol reserves memory before it
  // uses it.
  ByteBudget& message_budget() { return message_budget_; }
  // Reserves memory for an answer to this client (server/net/client_name.h), or returns
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<ByteBudget::Reservation> ReserveAnswer(int64_t num_bytes,
                                                        const std::string& client);

  // Returns the turns in which bodies are parsed.
  ParseTurns& parse_turns() { return parse_turns_; }
  // Returns the trimmer of the process's heap. The main thread calls its Tick.
  HeapTrim& heap_trim() { return heap_trim_; }

  Clock* clock() const { return clock_; }

 private:
  absl::Status LifeCycleLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CanaryLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status AliveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status HealthLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration HeartbeatAgeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const absl::Duration stall_timeout_;
  TrustedProxies trusted_proxies_;
  std::atomic<uint64_t> num_canary_recovered_{0};
  ByteBudget message_budget_;
  HeapTrim heap_trim_;
  ParseTurns parse_turns_{&heap_trim_};
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status weights_damage_ ABSL_GUARDED_BY(mutex_);
  absl::Status canary_ ABSL_GUARDED_BY(mutex_);
  absl::Status listeners_ ABSL_GUARDED_BY(mutex_);
  // The engine's last step, and the time at which this object first saw it while there was work.
  // The age counts from that time, so an engine that was idle for an hour is not stalled when a
  // request arrives.
  absl::Time seen_step_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time seen_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace taopd
