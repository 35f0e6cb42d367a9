#include "server/http/completion.h"

#include <absl/synchronization/mutex.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/http/completion_response.h"
#include "server/http/generated_text.h"

namespace taopd {
namespace {

constexpr int64_t kMaxResponseBytes = int64_t{256} << 20;
constexpr absl::Duration kClientCheckInterval = absl::Milliseconds(100);

// Collects the results of a batch. Shared with the engine's callbacks, which may come after a
// waiter has gone.
class PendingBatch {
 public:
  explicit PendingBatch(size_t size) : results_(size), num_left_(size) {}

  void Set(size_t index, absl::StatusOr<InferenceResult> result) {
    absl::MutexLock lock(&mutex_);
    results_[index] = std::move(result);
    --num_left_;
  }
  bool WaitFor(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &PendingBatch::Complete), timeout);
  }
  // The results, or the first error. REQUIRES: WaitFor has returned true.
  absl::StatusOr<std::vector<InferenceResult>> Take() {
    absl::MutexLock lock(&mutex_);
    std::vector<InferenceResult> taken;
    for (auto& result : results_) {
      if (!result->ok()) return result->status();
      taken.push_back(**std::move(result));
    }
    return taken;
  }

 private:
  bool Complete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_left_ == 0; }

  absl::Mutex mutex_;
  std::vector<std::optional<absl::StatusOr<InferenceResult>>> results_ ABSL_GUARDED_BY(mutex_);
  size_t num_left_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<InferenceResult>> RunBatch(InferenceEngine& engine,
                                                      std::vector<InferenceRequest> requests,
                                                      const std::function<bool()>& client_gone) {
  auto batch = std::make_shared<PendingBatch>(requests.size());
  std::vector<std::pair<InferenceRequest, InferenceDone>> work;
  for (size_t i = 0; i < requests.size(); ++i) {
    work.emplace_back(std::move(requests[i]), [batch, i](absl::StatusOr<InferenceResult> result) {
      batch->Set(i, std::move(result));
    });
  }
  const std::vector<RequestHandle> handles = engine.SubmitBatch(std::move(work));
  bool cancelled = false;
  while (!batch->WaitFor(kClientCheckInterval)) {
    if (cancelled || !client_gone()) continue;
    cancelled = true;
    for (const RequestHandle handle : handles) {
      if (handle != 0) engine.Cancel(handle);
    }
  }
  return batch->Take();
}

// Of choice `index` of a prompt.
uint64_t SeedOf(const CompletionRequest& request, size_t index) {
  if (request.seed) return static_cast<uint64_t>(*request.seed) + index;
  return DeriveSeed(0, RandomRequestId());
}

SamplingParams SamplingOf(const CompletionRequest& request, const CompletionPrompt& prompt) {
  SamplingParams sampling = request.sampling;
  sampling.max_new_tokens = prompt.max_new_tokens;
  // vLLM reports log-probs under softmax(logits), whatever the temperature: its logprobs_mode
  // raw_logprobs.
  sampling.log_probs = false;
  if (request.logprobs && request.max_tokens > 0) {
    sampling.raw_log_probs = true;
    sampling.num_log_probs = *request.logprobs;
    sampling.top_log_probs_mode = LogProbsMode::kRaw;
  }
  return sampling;
}

// One engine request per choice. The prompt is scored with its first choice.
std::vector<InferenceRequest> ToInferenceRequests(const CompletionRequest& request,
                                                  const CompletionCaller& caller,
                                                  const ServedModel& model) {
  std::vector<InferenceRequest> requests;
  for (size_t choice = 0; choice < request.NumChoices(); ++choice) {
    const size_t index = choice % static_cast<size_t>(request.n);
    const CompletionPrompt& prompt = request.PromptOf(choice);
    InferenceRequest out;
    out.request_id = request.request_id;
    out.token_ids = prompt.token_ids;
    out.client = caller.address;
    out.deadline = caller.deadline;
    out.cache_salt = request.cache_salt;
    // A single token has no position that another one precedes.
    if (index == 0 && request.prompt_logprobs && out.token_ids.size() > 1) {
      ScoreParams score;
      score.top_k = *request.prompt_logprobs;
      score.rank = true;
      out.score = std::move(score);
    }
    out.sampling = SamplingOf(request, prompt);
    out.sampling->seed = SeedOf(request, index);
    if (!request.stop.empty()) {
      out.should_stop = [text = std::make_shared<GeneratedText>(model.tokenizer.get(), request)](
                            int32_t id) { return text->Push(id); };
    }
    requests.push_back(std::move(out));
  }
  return requests;
}

// An estimate of the memory of the sampling fields of all choices, each of which has its own copy.
int64_t SamplingBytes(const CompletionRequest& request) {
  constexpr size_t kBytesPerNode = 64;  // of a map, or of a vector in a vector
  const SamplingParams& sampling = request.sampling;
  size_t num_ids = sampling.stop_token_ids.size(), num_nodes = sampling.logit_bias.size();
  if (sampling.allowed_token_ids) num_ids += sampling.allowed_token_ids->size();
  for (const std::vector<int32_t>& word : sampling.bad_words_ids) num_ids += word.size();
  num_nodes += sampling.bad_words_ids.size();
  const size_t num_bytes = num_ids * sizeof(int32_t) + num_nodes * kBytesPerNode;
  return static_cast<int64_t>(num_bytes * request.NumChoices());
}

absl::Status CheckSize(const CompletionRequest& request, const ServedModel& model) {
  int64_t num_tokens = 0;
  for (const CompletionPrompt& prompt : request.prompts)
    num_tokens += static_cast<int64_t>(prompt.token_ids.size()) * request.n;
  if (request.NumChoices() > 1 && num_tokens > model.limits.max_queued_tokens) {
    return InvalidArgument("the prompts of all choices hold ", num_tokens,
                           " tokens together, more than max_queued_tokens ",
                           model.limits.max_queued_tokens,
                           "; send fewer prompts in one request, or a smaller n");
  }
  const int64_t num_bytes = EstimateResponseBytes(request) + SamplingBytes(request);
  if (num_bytes > kMaxResponseBytes) {
    return InvalidArgument(
        "the answer and the sampling fields of all choices may take ", num_bytes,
        " bytes, more than ", kMaxResponseBytes,
        "; send fewer prompts in one request, or ask for fewer prompt_logprobs, logprobs or n");
  }
  return absl::OkStatus();
}

}  // namespace

std::variant<std::string, HttpError> RunCompletion(const std::string& body,
                                                   const CompletionCaller& caller,
                                                   ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed = ParseCompletionRequest(body, **model);
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  if (!caller.request_id.empty()) request.request_id = caller.request_id;
  if (const absl::Status size = CheckSize(request, **model); !size.ok()) return FromStatus(size);

  absl::StatusOr<ByteBudget::Reservation> memory =
      state.ReserveAnswer(EstimateResponseBytes(request) + SamplingBytes(request));
  if (!memory.ok()) return FromStatus(memory.status());
  caller.hold_memory(*std::move(memory));
  absl::StatusOr<std::vector<InferenceResult>> results = std::vector<InferenceResult>();
  if (!request.prompts.empty()) {
    results =
        RunBatch(*(*model)->engine, ToInferenceRequests(request, caller, **model), caller.is_gone);
  }
  if (!results.ok()) return FromStatus(results.status());
  auto json =
      CompletionResponseJson(request, **model, *results, absl::ToUnixSeconds(state.clock()->Now()));
  if (!json.ok()) return FromStatus(json.status());
  return *std::move(json);
}

}  // namespace taopd
