#include "server/generation/engine_requests.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/random.h"
#include "common/engine/request_validation.h"
#include "server/generation/generated_text.h"

namespace taopd {
namespace {

// Returns the request of each choice of the prompt, without the fields that differ between them.
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

// Returns what the engine should score of a prompt, or nullopt if there is nothing to score.
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
    // -1 pads a list: any id will do, because its log-prob is not reported.
    score.candidate_ids.push_back(
        std::max(0, scoring.candidate_ids[i % scoring.candidate_ids.size()]));
  }
  return score;
}

// Returns an estimate of the memory of a copy. Each choice has its own copy of the sampling fields
// and of the stop strings, so a small request for many choices may need much memory.
int64_t SamplingBytes(const SamplingParams& sampling) {
  constexpr size_t kBytesPerWord = 64;  // a vector in a vector
  size_t num_ids = sampling.stop_token_ids.size();
  if (sampling.allowed_token_ids) num_ids += sampling.allowed_token_ids->size();
  for (const std::vector<int32_t>& word : sampling.bad_words_ids) num_ids += word.size();
  return static_cast<int64_t>(num_ids * sizeof(int32_t) +
                              sampling.bad_words_ids.size() * kBytesPerWord);
}

int64_t StringsBytes(std::span<const std::string> strings) {
  size_t num_bytes = 0;
  for (const std::string& text : strings) num_bytes += sizeof(text) + text.size();
  return static_cast<int64_t>(num_bytes);
}

// Returns an estimate of the memory of the copies of all choices.
int64_t BytesOfChoices(const GenerationRequest& request) {
  const int64_t names = static_cast<int64_t>(request.request_id.size() + request.cache_salt.size());
  const int64_t mask =
      request.grammar
          ? static_cast<int64_t>(sizeof(int32_t) * request.sampling.stop_token_ids.size())
          : 0;
  const int64_t each = SamplingBytes(request.sampling) + StringsBytes(request.stop) + names + mask;
  return each * static_cast<int64_t>(request.NumChoices()) +
         static_cast<int64_t>(sizeof(int32_t)) * request.NumPromptTokens() * request.n;
}

absl::Status CheckQueue(const GenerationRequest& request, const EngineLimits& limits) {
  const int64_t num_tokens = request.NumPromptTokens() * request.n;
  const int64_t most = std::min(limits.max_queued_tokens, limits.max_client_queued_tokens);
  if (request.NumChoices() <= 1 || num_tokens <= most) return absl::OkStatus();
  return InvalidArgument("the prompts of all choices hold ", num_tokens, " tokens together, ",
                         most < limits.max_queued_tokens
                             ? Concat("more than a client's share ", most, " of ")
                             : "more than ",
                         "max_queued_tokens ", limits.max_queued_tokens,
                         "; send fewer prompts in one request, or a smaller n");
}

}  // namespace

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

absl::StatusOr<ByteBudget::Reservation> ReserveMemory(const GenerationRequest& request,
                                                      const AnswerBytes& answer,
                                                      const ServedModel& model,
                                                      const Caller& caller, ServingState* state) {
  TAOPD_RETURN_IF_ERROR(CheckQueue(request, model.limits));
  const int64_t num_bytes = answer.whole + BytesOfChoices(request);
  if (num_bytes > kMaxAnswerBytes) {
    return InvalidArgument(
        "the answer, the sampling fields and the stop strings of all choices may take ", num_bytes,
        " bytes, more than ", kMaxAnswerBytes,
        "; send fewer prompts in one request, or ask for fewer prompt_logprobs, logprobs or n");
  }
  return state->ReserveAnswer(num_bytes + answer.waiting_messages, caller.client);
}

}  // namespace taopd
