#include "server/http/request/common_fields.h"

#include <utility>

#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxAllChoices = 16384;

absl::Status CheckScoring(const GenerationRequest& request) {
  const PromptScoring& scoring = request.scoring;
  for (const GenerationPrompt& prompt : request.prompts) {
    const int64_t num_tokens = static_cast<int64_t>(prompt.token_ids.size());
    if (scoring.start > num_tokens) {
      return FieldError("prompt_logprobs_start", "prompt_logprobs_start ", scoring.start,
                        " is beyond a prompt of ", num_tokens, " tokens.");
    }
    const int64_t num_lists =
        scoring.num_candidates == 0
            ? 0
            : static_cast<int64_t>(scoring.candidate_ids.size()) / scoring.num_candidates;
    if (!scoring.one_list && num_lists != num_tokens - scoring.start) {
      return FieldError("prompt_logprob_token_ids", "prompt_logprob_token_ids has ", num_lists,
                        " lists, but ", num_tokens - scoring.start, " positions are scored.");
    }
  }
  return absl::OkStatus();
}

// vLLM reports log-probs under softmax(logits), whatever the temperature: its logprobs_mode
// raw_logprobs.
void SetReports(GenerationRequest* request) {
  SamplingParams& sampling = request->sampling;
  sampling.log_probs = false;
  if (!request->logprobs || request->max_tokens == 0) return;
  sampling.raw_log_probs = true;
  sampling.ranks = request->ranks;
  sampling.num_log_probs = *request->logprobs;
  sampling.top_log_probs_mode = LogProbsMode::kRaw;
}

}  // namespace

absl::Status ReadTruncation(JsonFields& fields, GenerationRequest* request) {
  constexpr char kName[] = "truncate_prompt_tokens";
  request->truncate_prompt_tokens = fields.ClampedInteger(kName);
  const std::optional<std::string> side = fields.Text("truncation_side");
  if (side && *side != "left" && *side != "right") {
    return WrongType("truncation_side", "'left' or 'right'");
  }
  request->truncate_right = side == "right";
  if (request->truncate_prompt_tokens.value_or(0) < -1) {
    return WrongType(kName, "greater than or equal to -1");
  }
  return absl::OkStatus();
}

absl::Status AddPromptIds(const ordered_json& ids, const char* field, const ServedModel& model,
                          GenerationRequest* request) {
  GenerationPrompt prompt;
  prompt.token_ids.reserve(ids.size());
  for (const ordered_json& item : ids) {
    const std::optional<int64_t> id = AsClampedInteger(item);
    if (!id) return WrongType(field, "texts, or lists of valid integers");
    if (*id < 0) return WrongType(field, "greater than or equal to 0");
    if (*id >= model.limits.vocab_size) {
      return InvalidArgument("Token id ", item.dump(), " is out of vocabulary");
    }
    prompt.token_ids.push_back(static_cast<int32_t>(*id));
  }
  return AddPrompt(std::move(prompt), model.limits, request);
}

absl::Status FinishPrompts(const ServedModel& model, bool echo_only, GenerationRequest* request) {
  if (request->prompts.size() > static_cast<size_t>(kMaxAllChoices / request->n)) {
    return FieldError("n", "n = ", request->n, " choices of each of ", request->prompts.size(),
                      " prompts: at most ", kMaxAllChoices, " choices.");
  }
  TAOPD_RETURN_IF_ERROR(CheckScoring(*request));
  SetReports(request);
  return FitPrompts(model.limits, echo_only, request);
}

}  // namespace taopd
