#include "server/http/generation/prompts.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace taopd {
namespace {

constexpr int64_t kMaxAllChoices = 16384;

// What the prompt and the generated tokens of one choice may hold together.
int64_t ContextLimit(const ServedModel& model, bool generates) {
  return generates ? std::min(model.limits.max_model_len, model.limits.max_generation_len)
                   : model.limits.max_model_len;
}

void Truncate(const GenerationRequest& request, const ServedModel& model,
              std::vector<int32_t>* ids) {
  if (!request.truncate_prompt_tokens) return;
  const int64_t asked = *request.truncate_prompt_tokens;
  const size_t keep = static_cast<size_t>(asked == -1 ? ContextLimit(model, true) : asked);
  if (ids->size() <= keep) return;
  if (request.truncate_right) {
    ids->resize(keep);
  } else {
    ids->erase(ids->begin(), ids->end() - static_cast<std::ptrdiff_t>(keep));
  }
}

std::optional<HttpError> Add(GenerationPrompt prompt, const ServedModel& model,
                             GenerationRequest* request) {
  const size_t num_sent = prompt.token_ids.size();
  Truncate(*request, model, &prompt.token_ids);
  if (prompt.token_ids.size() < num_sent) prompt.text.reset();  // no longer what was sent
  if (prompt.token_ids.empty()) return BadRequest("The decoder prompt cannot be empty");
  request->prompts.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<HttpError> CheckScoring(const GenerationRequest& request) {
  const PromptScoring& scoring = request.scoring;
  for (const GenerationPrompt& prompt : request.prompts) {
    const int64_t num_tokens = static_cast<int64_t>(prompt.token_ids.size());
    if (scoring.start > num_tokens) {
      return BadField("prompt_logprobs_start",
                      Concat("prompt_logprobs_start ", scoring.start, " is beyond a prompt of ",
                             num_tokens, " tokens. (parameter=prompt_logprobs_start)"));
    }
    const int64_t num_lists =
        scoring.num_candidates == 0
            ? 0
            : static_cast<int64_t>(scoring.candidate_ids.size()) / scoring.num_candidates;
    if (!scoring.one_list && num_lists != num_tokens - scoring.start) {
      return BadField("prompt_logprob_token_ids",
                      Concat("prompt_logprob_token_ids has ", num_lists, " lists, but ",
                             num_tokens - scoring.start,
                             " positions are scored. (parameter=prompt_logprob_token_ids)"));
    }
  }
  return std::nullopt;
}

std::optional<HttpError> Fit(const ServedModel& model, bool echo_only,
                             const GenerationRequest& request, GenerationPrompt* prompt) {
  const bool generates = request.max_tokens > 0 || echo_only;
  const int64_t limit = ContextLimit(model, generates);
  const int64_t num_input = static_cast<int64_t>(prompt->token_ids.size());
  if (num_input > limit) {
    return BadField("input_tokens",
                    Concat("This model's maximum context length is ", limit,
                           " tokens. However, your prompt contains at least ", num_input,
                           " input tokens, which exceeds this limit even without any output "
                           "tokens. Please reduce the length of the input prompt. "
                           "(parameter=input_tokens, value=",
                           num_input, ")"));
  }
  if (!generates) {
    prompt->max_new_tokens = 0;
    return std::nullopt;
  }
  if (num_input == limit) {
    if (request.max_tokens > 0) {
      return BadField("max_tokens",
                      Concat("max_tokens must be at least 1, got 0: the prompt of ", num_input,
                             " tokens fills the context. (parameter=max_tokens, value=0)"));
    }
    return BadRequest(
        Concat("The decoder prompt (length ", num_input,
               ") plus the number of requested output tokens (at least 1) is longer than the "
               "maximum model length of ",
               limit, "."));
  }
  const int64_t asked = std::max<int64_t>(request.max_tokens, 1);
  prompt->max_new_tokens = std::min(asked, limit - num_input);
  if (prompt->max_new_tokens < asked && asked != INT64_MAX) {
    LogDebug("max_tokens is cut to what the context leaves",
             {{"request_id", request.request_id},
              {"max_tokens", asked},
              {"max_new_tokens", prompt->max_new_tokens}});
  }
  if (request.sampling.min_tokens > prompt->max_new_tokens) {
    return BadField("min_tokens", Concat("min_tokens must be less than or equal to max_tokens=",
                                         prompt->max_new_tokens, ", got ",
                                         request.sampling.min_tokens, ". (parameter=min_tokens)"));
  }
  return std::nullopt;
}

}  // namespace

std::optional<HttpError> ReadTruncation(JsonFields& fields, GenerationRequest* request) {
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
  return std::nullopt;
}

std::optional<HttpError> AddPromptIds(const nlohmann::json& ids, const char* field,
                                      const ServedModel& model, GenerationRequest* request) {
  GenerationPrompt prompt;
  prompt.token_ids.reserve(ids.size());
  for (const nlohmann::json& item : ids) {
    const std::optional<int64_t> id = AsClampedInteger(item);
    if (!id) return WrongType(field, "texts, or lists of valid integers");
    if (*id < 0) return WrongType(field, "greater than or equal to 0");
    if (*id >= model.limits.vocab_size) {
      return BadRequest(Concat("Token id ", item.dump(), " is out of vocabulary"));
    }
    prompt.token_ids.push_back(static_cast<int32_t>(*id));
  }
  return Add(std::move(prompt), model, request);
}

std::optional<HttpError> AddPromptText(const std::string& text, bool add_special_tokens,
                                       const char* field, const ServedModel& model,
                                       GenerationRequest* request) {
  if (model.tokenizer == nullptr) {
    return BadField(field, Concat(field,
                                  " is a text, but the model directory has no tokenizer.json: send "
                                  "token ids. (parameter=",
                                  field, ")"));
  }
  GenerationPrompt prompt;
  prompt.token_ids = model.tokenizer->Encode(text, add_special_tokens);
  prompt.text = text;
  for (const int32_t id : prompt.token_ids) {
    // A tokenizer that knows more ids than the model has rows.
    if (id >= model.limits.vocab_size)
      return BadRequest(Concat("Token id ", id, " is out of vocabulary"));
  }
  return Add(std::move(prompt), model, request);
}

std::optional<HttpError> FinishPrompts(const ServedModel& model, bool echo_only,
                                       GenerationRequest* request) {
  if (request->prompts.size() > static_cast<size_t>(kMaxAllChoices / request->n)) {
    return BadField("n", Concat("n = ", request->n, " choices of each of ", request->prompts.size(),
                                " prompts: at most ", kMaxAllChoices, " choices. (parameter=n)"));
  }
  if (auto error = CheckScoring(*request)) return error;
  for (GenerationPrompt& prompt : request->prompts) {
    if (auto error = Fit(model, echo_only, *request, &prompt)) return error;
  }
  return std::nullopt;
}

}  // namespace taopd
