#include "server/generation/generation.h"

#include <absl/synchronization/mutex.h>

#include <deque>
#include <utility>

#include "server/generation/engine_requests.h"

namespace taopd {
namespace {

constexpr absl::Duration kClientCheckInterval = absl::Milliseconds(100);

}  // namespace

// Shared with the run's events, which may come after the Generation has gone.
class Generation::Queue {
 public:
  Queue(size_t num_choices, size_t num_log_probs)
      : num_log_probs_(num_log_probs), results_(num_choices), updates_(num_choices) {}

  // Joins the update that the choice still has in the queue.
  void Push(ChoiceUpdate update) {
    absl::MutexLock lock(&mutex_);
    std::optional<ChoiceUpdate>& waiting = updates_[update.choice];
    if (!waiting) {
      order_.push_back(update.choice);
      waiting = std::move(update);
      return;
    }
    AppendLastTokens(update.tokens, update.tokens.ids.size(), num_log_probs_, &waiting->tokens);
    waiting->is_last = update.is_last;
  }
  void Put(size_t choice, InferenceResult result) {
    absl::MutexLock lock(&mutex_);
    results_[choice] = std::move(result);
  }
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    error_ = status;
    ended_ = true;
  }
  // Waits for an update or the end. Returns false if neither comes within the timeout.
  bool WaitForEvent(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto has_event = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ended_ || !order_.empty();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&has_event), timeout);
  }
  absl::Status EarlyError() {
    absl::MutexLock lock(&mutex_);
    return order_.empty() ? error_ : absl::OkStatus();
  }
  absl::StatusOr<std::optional<ChoiceUpdate>> Take() {
    absl::MutexLock lock(&mutex_);
    if (order_.empty()) {
      if (!error_.ok()) return error_;
      return std::nullopt;
    }
    const size_t choice = order_.front();
    order_.pop_front();
    return std::exchange(updates_[choice], std::nullopt);
  }
  absl::StatusOr<std::vector<InferenceResult>> TakeAll() {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return error_;
    return std::move(results_);
  }

 private:
  const size_t num_log_probs_;
  absl::Mutex mutex_;
  std::vector<InferenceResult> results_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<ChoiceUpdate>> updates_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> order_ ABSL_GUARDED_BY(mutex_);  // choices that have an update
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

Generation::Generation(const GenerationRequest& request, const Caller& caller,
                       std::shared_ptr<const ServedModel> model, bool streams)
    : model_(std::move(model)),
      is_gone_(caller.is_gone),
      queue_(std::make_shared<Queue>(request.NumChoices(),
                                     static_cast<size_t>(request.sampling.num_log_probs))),
      run_(std::make_shared<EngineRun>(
          model_->engine.get(), /*delivery=*/nullptr,
          EngineEvents{
              .on_update = streams ? [queue = queue_](
                                         ChoiceUpdate update) { queue->Push(std::move(update)); }
                                   : std::function<void(ChoiceUpdate)>(),
              .on_result = [queue = queue_](
                               size_t choice,
                               InferenceResult result) { queue->Put(choice, std::move(result)); },
              .on_end = [queue = queue_](const absl::Status& status) { queue->End(status); }})) {
  run_->Start(EngineRequests(request, caller, *model_, /*scores=*/!streams));
}

void Generation::AwaitEvent() {
  while (!queue_->WaitForEvent(kClientCheckInterval)) {
    if (!run_->is_cancelled() && is_gone_()) run_->Cancel();
  }
}

absl::Status Generation::AwaitFirst() {
  AwaitEvent();
  return queue_->EarlyError();
}

absl::StatusOr<std::optional<ChoiceUpdate>> Generation::Next() {
  AwaitEvent();
  return queue_->Take();
}

absl::StatusOr<std::vector<InferenceResult>> Generation::Finish() {
  AwaitEvent();  // the end, because there are no updates
  return queue_->TakeAll();
}

absl::StatusOr<PromptScores> ScorePrompts(const GenerationRequest& request, const Caller& caller,
                                          const std::shared_ptr<const ServedModel>& model) {
  GenerationRequest scoring = request;
  scoring.n = 1;
  for (GenerationPrompt& prompt : scoring.prompts) prompt.max_new_tokens = 0;
  Generation generation(scoring, caller, model, /*streams=*/false);
  TAOPD_ASSIGN_OR_RETURN(std::vector<InferenceResult> results, generation.Finish());
  PromptScores rows;
  for (InferenceResult& result : results) rows.push_back(std::move(result.score));
  return rows;
}

}  // namespace taopd
