#include "server/http/generation/generation.h"

#include <absl/synchronization/mutex.h>

#include <deque>
#include <utility>

#include "common/engine/request_validation.h"
#include "server/http/generation/generated_text.h"
#include "server/serving/sampling_fields.h"

namespace taopd {
namespace {

constexpr int64_t kMaxResponseBytes = int64_t{256} << 20;
constexpr absl::Duration kClientCheckInterval = absl::Milliseconds(100);

SamplingParams SamplingOf(const GenerationRequest& request, const GenerationPrompt& prompt) {
  SamplingParams sampling = request.sampling;
  sampling.max_new_tokens = prompt.max_new_tokens;
  // vLLM reports log-probs under softmax(logits), whatever the temperature: its logprobs_mode
  // raw_logprobs.
  sampling.log_probs = false;
  if (request.logprobs && request.max_tokens > 0) {
    sampling.raw_log_probs = true;
    sampling.ranks = request.ranks;
    sampling.num_log_probs = *request.logprobs;
    sampling.top_log_probs_mode = LogProbsMode::kRaw;
  }
  return sampling;
}

InferenceRequest RequestFor(const GenerationRequest& request, const GenerationPrompt& prompt,
                            const Caller& caller) {
  InferenceRequest out;
  out.request_id = request.request_id;
  out.token_ids = prompt.token_ids;
  out.deadline = caller.deadline;
  out.client = caller.client;
  out.cache_salt = request.cache_salt;
  return out;
}

// An estimate of the memory of what all choices have copies of, beside their tokens.
int64_t BytesOfChoices(const GenerationRequest& request) {
  const int64_t names = static_cast<int64_t>(request.request_id.size() + request.cache_salt.size());
  const int64_t mask =
      request.grammar
          ? static_cast<int64_t>(sizeof(int32_t) * request.sampling.stop_token_ids.size())
          : 0;
  const int64_t each = SamplingBytes(request.sampling) + StringsBytes(request.stop) + names + mask;
  return each * static_cast<int64_t>(request.NumChoices());
}

template <typename T>
void AppendEnd(const std::vector<T>& from, size_t num, std::vector<T>* to) {
  if (from.size() >= num)
    to->insert(to->end(), from.end() - static_cast<ptrdiff_t>(num), from.end());
}

}  // namespace

// Shared with the engine's callbacks, which may come after the Generation has gone.
class Generation::Queue {
 public:
  explicit Queue(size_t size) : results_(size), updates_(size), num_left_(size) {}

  // The newest token of `so_far`. Joins the update that the choice still has in the queue.
  void Push(size_t choice, const GeneratedTokens& so_far, size_t num_log_probs, bool is_last) {
    absl::MutexLock lock(&mutex_);
    std::optional<ChoiceUpdate>& update = updates_[choice];
    if (!update) {
      update.emplace();
      update->choice = choice;
      order_.push_back(choice);
    }
    GeneratedTokens& tokens = update->tokens;
    AppendEnd(so_far.ids, 1, &tokens.ids);
    AppendEnd(so_far.raw_log_probs, 1, &tokens.raw_log_probs);
    AppendEnd(so_far.ranks, 1, &tokens.ranks);
    AppendEnd(so_far.top_ids, num_log_probs, &tokens.top_ids);
    AppendEnd(so_far.top_log_probs, num_log_probs, &tokens.top_log_probs);
    tokens.finish = so_far.finish;
    update->is_last = is_last;
  }
  void End(size_t index, absl::StatusOr<InferenceResult> result) {
    absl::MutexLock lock(&mutex_);
    if (!result.ok() && error_.ok()) error_ = result.status();
    results_[index] = std::move(result);
    --num_left_;
  }
  template <typename Ready>
  bool WaitFor(const Ready& ready, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto condition = [&] { return ready(*this); };
    return mutex_.AwaitWithTimeout(absl::Condition(&condition), timeout);
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
    std::vector<InferenceResult> taken;
    for (auto& result : results_) taken.push_back(**std::move(result));
    return taken;
  }

  // For conditions, which hold the lock.
  bool AllEnded() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return num_left_ == 0; }
  bool HasNews() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return num_left_ == 0 || !order_.empty() || !error_.ok();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::optional<absl::StatusOr<InferenceResult>>> results_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<ChoiceUpdate>> updates_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> order_ ABSL_GUARDED_BY(mutex_);  // choices that have an update
  size_t num_left_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // the first one
};

Generation::Generation(const GenerationRequest& request, const Caller& caller,
                       std::shared_ptr<const ServedModel> model, bool streams)
    : model_(std::move(model)),
      is_gone_(caller.is_gone),
      queue_(std::make_shared<Queue>(request.NumChoices())) {
  std::vector<std::pair<InferenceRequest, InferenceDone>> work;
  for (size_t choice = 0; choice < request.NumChoices(); ++choice) {
    const size_t index = choice % static_cast<size_t>(request.n);
    const GenerationPrompt& prompt = request.PromptOf(choice);
    InferenceRequest out = RequestFor(request, prompt, caller);
    out.num_choices = index == 0 ? request.n : 0;
    if (index == 0 && !streams) out.score = ScoreParamsOf(request, prompt);
    if (prompt.max_new_tokens > 0) {
      out.sampling = SamplingOf(request, prompt);
      out.sampling->seed = SequenceSeed(request.seed, index);
      if (request.compiled_grammar != nullptr)
        out.sampling->mask =
            Grammar::NewMask(request.compiled_grammar, out.sampling->stop_token_ids);
      if (!request.stop.empty()) {
        out.should_stop =
            [text = std::make_shared<GeneratedText>(model_->tokenizer.get(), request)](int32_t id) {
              return text->Push(id);
            };
      }
    }
    if (!out.score && !out.sampling) {
      queue_->End(choice, InferenceResult());  // nothing to compute
      continue;
    }
    if (streams) {
      const size_t num_log_probs = static_cast<size_t>(out.sampling->num_log_probs);
      out.on_token = [queue = queue_, choice, num_log_probs](const GeneratedTokens& so_far,
                                                             bool is_last) {
        queue->Push(choice, so_far, num_log_probs, is_last);
      };
    }
    work.emplace_back(std::move(out),
                      [queue = queue_, choice](absl::StatusOr<InferenceResult> result) {
                        queue->End(choice, std::move(result));
                      });
  }
  if (!work.empty()) handles_ = model_->engine->SubmitBatch(std::move(work));
}

Generation::~Generation() { Cancel(); }

void Generation::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  const auto all_ended = [](const Queue& queue) { return queue.AllEnded(); };
  if (queue_->WaitFor(all_ended, absl::ZeroDuration())) return;
  for (const RequestHandle handle : handles_) {
    if (handle != 0) model_->engine->Cancel(handle);
  }
}

template <typename Ready>
void Generation::Await(const Ready& ready) {
  while (!queue_->WaitFor(ready, kClientCheckInterval)) {
    if (!cancelled_ && is_gone_()) Cancel();
  }
}

absl::StatusOr<std::optional<ChoiceUpdate>> Generation::Next() {
  Await([](const Queue& queue) { return queue.HasNews(); });
  return queue_->Take();
}

absl::StatusOr<std::vector<InferenceResult>> Generation::Finish() {
  Await([](const Queue& queue) { return queue.AllEnded(); });
  return queue_->TakeAll();
}

absl::StatusOr<std::vector<std::optional<ScoreRows>>> ScorePrompts(
    const GenerationRequest& request, const Caller& caller,
    const std::shared_ptr<const ServedModel>& model) {
  GenerationRequest scoring = request;
  scoring.n = 1;
  for (GenerationPrompt& prompt : scoring.prompts) prompt.max_new_tokens = 0;
  Generation generation(scoring, caller, model, /*streams=*/false);
  TAOPD_ASSIGN_OR_RETURN(std::vector<InferenceResult> results, generation.Finish());
  std::vector<std::optional<ScoreRows>> rows;
  for (InferenceResult& result : results) rows.push_back(std::move(result.score));
  return rows;
}

std::optional<ScoreParams> ScoreParamsOf(const GenerationRequest& request,
                                         const GenerationPrompt& prompt) {
  const PromptScoring& scoring = request.scoring;
  const int64_t start = prompt.score_start > 0 ? prompt.score_start : scoring.start;
  const int64_t num_rows = static_cast<int64_t>(prompt.token_ids.size()) - start;
  // A single token has no position that another one precedes.
  if (!request.prompt_logprobs || num_rows <= 0) return std::nullopt;
  ScoreParams score;
  score.start = start;
  score.top_k = *request.prompt_logprobs;
  score.rank = true;
  score.num_candidates = scoring.num_candidates;
  const size_t num_ids = static_cast<size_t>(num_rows * scoring.num_candidates);
  score.candidate_ids.reserve(num_ids);
  for (size_t i = 0; i < num_ids; ++i) {
    // -1 fills a list up: any id will do, its log-prob is not reported.
    score.candidate_ids.push_back(
        std::max(0, scoring.candidate_ids[i % scoring.candidate_ids.size()]));
  }
  return score;
}

absl::Status ValidateChoices(const GenerationRequest& request, const Caller& caller,
                             const ServedModel& model) {
  for (const GenerationPrompt& prompt : request.prompts) {
    if (prompt.max_new_tokens <= 0) continue;
    InferenceRequest choice = RequestFor(request, prompt, caller);
    choice.sampling = SamplingOf(request, prompt);
    TAOPD_RETURN_IF_ERROR(ValidateRequest(choice, model.limits));
  }
  return absl::OkStatus();
}

absl::Status ReserveMemory(const GenerationRequest& request, int64_t answer_bytes,
                           const ServedModel& model, const Caller& caller, ServingState* state) {
  const int64_t num_tokens = request.NumPromptTokens() * request.n;
  const int64_t max_queued_tokens = model.limits.max_queued_tokens;
  const int64_t most = std::min(max_queued_tokens, model.limits.max_client_queued_tokens);
  if (request.NumChoices() > 1 && num_tokens > most) {
    return InvalidArgument("the prompts of all choices hold ", num_tokens, " tokens together, ",
                           most < max_queued_tokens
                               ? Concat("more than a client's share ", most, " of ")
                               : "more than ",
                           "max_queued_tokens ", max_queued_tokens,
                           "; send fewer prompts in one request, or a smaller n");
  }
  const int64_t num_bytes = answer_bytes + BytesOfChoices(request);
  if (num_bytes > kMaxResponseBytes) {
    return InvalidArgument(
        "the answer, the sampling fields and the stop strings of all choices may take ", num_bytes,
        " bytes, more than ", kMaxResponseBytes,
        "; send fewer prompts in one request, or ask for fewer prompt_logprobs, logprobs or n");
  }
  TAOPD_ASSIGN_OR_RETURN(ByteBudget::Reservation memory,
                         state->ReserveAnswer(num_bytes, caller.client));
  caller.hold_memory(std::move(memory));
  return absl::OkStatus();
}

}  // namespace taopd
