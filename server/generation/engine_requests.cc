#include "server/generation/engine_requests.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/random.h"
#include "common/engine/request_validation.h"
#include "server/generation/generated_text.h"

namespace taopd {
namespace {

// The request of each choice of the prompt, without what differs between them.
InferenceRequest PromptRequest(const GenerationRequest& request, const GenerationPrompt& prompt) {
  InferenceRequest out;
  out.request_id = request.request_id;
  out.token_ids = prompt.token_ids;
  out.cache_salt = request.cache_salt;
  if (prompt.max_new_tokens > 0) {
    out.sampling = request.sampling;
    out.sampling->max_new_tokens = prompt.max_new_tokens;
  }
  return out;
}

}  // namespace

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

std::vector<InferenceRequest> EngineRequests(const GenerationRequest& request, const Caller& caller,
                                             const ServedModel& model, bool scores) {
  std::vector<InferenceRequest> requests;
  requests.reserve(request.NumChoices());
  for (const GenerationPrompt& prompt : request.prompts) {
    for (int64_t index = 0; index < request.n; ++index) {
      InferenceRequest& out = requests.emplace_back(PromptRequest(request, prompt));
      out.deadline = caller.deadline;
      out.client = caller.client;
      out.num_choices = index == 0 ? request.n : 0;
      if (index == 0 && scores) out.score = ScoreParamsOf(request, prompt);
      if (!out.sampling) continue;
      out.sampling->seed =
          request.seed ? *request.seed + static_cast<uint64_t>(index) : FreshBits();
      if (request.compiled_grammar != nullptr) {
        out.sampling->mask =
            Grammar::NewMask(request.compiled_grammar, out.sampling->stop_token_ids);
      }
      if (!request.stop.empty()) {
        out.should_stop = [text = std::make_shared<GeneratedText>(model.tokenizer.get(), request)](
                              int32_t id) { return text->Push(id); };
      }
    }
  }
  return requests;
}

absl::Status ValidateChoices(const GenerationRequest& request, const EngineLimits& limits) {
  for (const GenerationPrompt& prompt : request.prompts) {
    if (prompt.max_new_tokens <= 0) continue;
    TAOPD_RETURN_IF_ERROR(ValidateRequest(PromptRequest(request, prompt), limits));
  }
  return absl::OkStatus();
}

}  // namespace taopd
