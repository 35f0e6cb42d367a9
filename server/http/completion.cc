#include "server/http/completion.h"

#include <absl/synchronization/mutex.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/http/completion_response.h"

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

bool NeedsRescoring(const CompletionRequest& request) {
  return request.logprobs && request.max_tokens > 0 && request.temperature != 0.0 &&
         request.temperature != 1.0;
}

std::vector<InferenceRequest> ToInferenceRequests(const CompletionRequest& request) {
  const uint64_t seed = request.seed ? static_cast<uint64_t>(*request.seed)
                                     : DeriveSeed(0, request.request_id + RandomRequestId());
  std::vector<InferenceRequest> requests;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    InferenceRequest out;
    out.request_id = request.request_id;
    out.token_ids = request.prompts[i].token_ids;
    // A single token has no position that another one precedes.
    if (request.prompt_logprobs && out.token_ids.size() > 1) {
      ScoreParams score;
      score.top_k = *request.prompt_logprobs;
      score.rank = true;
      out.score = std::move(score);
    }
    SamplingParams sampling;
    sampling.max_new_tokens = request.NumNewTokens();
    sampling.temperature = static_cast<float>(request.temperature);
    sampling.top_p = static_cast<float>(request.top_p);
    sampling.top_k = request.top_k;
    sampling.stop_token_ids = request.stop_token_ids;
    sampling.ignore_eos = request.ignore_eos;
    sampling.seed = seed;
    if (!NeedsRescoring(request)) sampling.num_log_probs = request.logprobs.value_or(0);
    out.sampling = std::move(sampling);
    requests.push_back(std::move(out));
  }
  return requests;
}

// The engine's log-probs of sampled tokens are under softmax(logits / temperature); vLLM reports
// those under softmax(logits) (its logprobs_mode raw_logprobs). They are the scores of the finished
// sequence.
absl::Status RescoreGenerated(InferenceEngine& engine, const CompletionRequest& request,
                              const std::function<bool()>& client_gone,
                              std::vector<InferenceResult>* results) {
  std::vector<InferenceRequest> requests;
  for (size_t i = 0; i < results->size(); ++i) {
    InferenceRequest out;
    out.request_id = request.request_id;
    out.token_ids = request.prompts[i].token_ids;
    ScoreParams score;
    score.start = static_cast<int64_t>(out.token_ids.size());
    score.top_k = *request.logprobs;
    out.score = std::move(score);
    const std::vector<int32_t>& generated = (*results)[i].generated->ids;
    out.token_ids.insert(out.token_ids.end(), generated.begin(), generated.end());
    requests.push_back(std::move(out));
  }
  TAOPD_ASSIGN_OR_RETURN(std::vector<InferenceResult> scored,
                         RunBatch(engine, std::move(requests), client_gone));
  for (size_t i = 0; i < results->size(); ++i) {
    GeneratedTokens& generated = *(*results)[i].generated;
    generated.log_probs = std::move(scored[i].score->sampled_log_probs);
    generated.top_ids = std::move(scored[i].score->ids);
    generated.top_log_probs = std::move(scored[i].score->log_probs);
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const CompletionRequest& request, const ServedModel& model) {
  int64_t num_tokens = 0;
  for (const CompletionPrompt& prompt : request.prompts)
    num_tokens += static_cast<int64_t>(prompt.token_ids.size());
  if (request.prompts.size() > 1 && num_tokens > model.limits.max_queued_tokens) {
    return InvalidArgument("the prompts hold ", num_tokens,
                           " tokens together, more than max_queued_tokens ",
                           model.limits.max_queued_tokens, "; send fewer prompts in one request");
  }
  const int64_t num_bytes = EstimateResponseBytes(request);
  if (num_bytes > kMaxResponseBytes) {
    return InvalidArgument(
        "the answer may take ", num_bytes, " bytes, more than ", kMaxResponseBytes,
        "; send fewer prompts in one request, or ask for fewer prompt_logprobs or logprobs");
  }
  return absl::OkStatus();
}

}  // namespace

std::variant<std::string, HttpError> RunCompletion(
    const std::string& body, const std::string& request_id_header, ServingState& state,
    const std::function<bool()>& client_gone,
    const std::function<void(ByteBudget::Reservation)>& hold_memory) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed = ParseCompletionRequest(body, **model);
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  if (!request_id_header.empty()) request.request_id = request_id_header;
  if (const absl::Status size = CheckSize(request, **model); !size.ok()) return FromStatus(size);

  absl::StatusOr<ByteBudget::Reservation> memory =
      state.ReserveAnswer(EstimateResponseBytes(request));
  if (!memory.ok()) return FromStatus(memory.status());
  hold_memory(*std::move(memory));
  InferenceEngine& engine = *(*model)->engine;
  absl::StatusOr<std::vector<InferenceResult>> results = std::vector<InferenceResult>();
  if (!request.prompts.empty())
    results = RunBatch(engine, ToInferenceRequests(request), client_gone);
  if (!results.ok()) return FromStatus(results.status());
  if (NeedsRescoring(request) && !results->empty()) {
    const absl::Status rescored = RescoreGenerated(engine, request, client_gone, &*results);
    if (!rescored.ok()) return FromStatus(rescored);
  }
  auto json =
      CompletionResponseJson(request, **model, *results, absl::ToUnixSeconds(state.clock()->Now()));
  if (!json.ok()) return FromStatus(json.status());
  return *std::move(json);
}

}  // namespace taopd
