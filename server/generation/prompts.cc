#include "server/generation/prompts.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/generation/request_fields.h"

namespace taopd {
namespace {

// Returns the maximum number of tokens of a prompt and its generated tokens together.
int64_t ContextLimit(const EngineLimits& limits, bool generates) {
  return generates ? std::min(limits.max_model_len, limits.max_generation_len)
                   : limits.max_model_len;
}

void Truncate(const GenerationRequest& request, const EngineLimits& limits,
              std::vector<int32_t>* ids) {
  if (!request.truncate_prompt_tokens) return;
  const int64_t asked = *request.truncate_prompt_tokens;
  // With -1, the tokens that are asked for find room, or one if that is more than the context.
  const int64_t limit = ContextLimit(limits, true);
  const int64_t num_new = request.max_tokens < limit ? std::max<int64_t>(request.max_tokens, 1) : 1;
  const auto keep =
      static_cast<size_t>(asked == -1 ? std::max<int64_t>(limit - num_new, 1) : asked);
  if (ids->size() <= keep) return;
  if (request.truncate_right) {
    ids->resize(keep);
  } else {
    ids->erase(ids->begin(), ids->end() - static_cast<std::ptrdiff_t>(keep));
  }
}

// Returns an error if the context does not hold the prompt and, if it `generates`, one more token.
absl::Status CheckFits(int64_t num_input, int64_t limit, bool generates,
                       const GenerationRequest& request) {
  if (num_input > limit) {
    return FieldValueError(
        "input_tokens", num_input, "This model's maximum context length is ", limit,
        " tokens. However, your prompt contains at least ", num_input,
        " input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        "length of the input prompt.");
  }
  if (!generates || num_input < limit) return absl::OkStatus();
  if (request.max_tokens > 0) {
    return FieldValueError("max_tokens", 0, "max_tokens must be at least 1, got 0: the prompt of ",
                           num_input, " tokens fills the context.");
  }
  return InvalidArgument("The decoder prompt (length ", num_input,
                         ") plus the number of requested output tokens (at least 1) is longer than "
                         "the maximum model length of ",
                         limit, ".");
}

absl::Status Fit(const EngineLimits& limits, bool echo_only, const GenerationRequest& request,
                 GenerationPrompt* prompt) {
  const bool generates = request.max_tokens > 0 || echo_only;
  const int64_t limit = ContextLimit(limits, generates);
  const int64_t num_input = static_cast<int64_t>(prompt->token_ids.size());
  TAOPD_RETURN_IF_ERROR(CheckFits(num_input, limit, generates, request));
  if (!generates) {
    prompt->max_new_tokens = 0;
    return absl::OkStatus();
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
    return FieldError("min_tokens", "min_tokens must be less than or equal to max_tokens=",
                      prompt->max_new_tokens, ", got ", request.sampling.min_tokens, ".");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddPrompt(GenerationPrompt prompt, const EngineLimits& limits,
                       GenerationRequest* request) {
  const size_t num_sent = prompt.token_ids.size();
  Truncate(*request, limits, &prompt.token_ids);
  if (prompt.token_ids.size() < num_sent) prompt.text.reset();  // no longer what was sent
  if (prompt.token_ids.empty()) return InvalidArgument("The decoder prompt cannot be empty");
  request->prompts.push_back(std::move(prompt));
  return absl::OkStatus();
}

absl::Status AddPromptText(const std::string& text, bool add_special_tokens, const char* field,
                           const ServedModel& model, GenerationRequest* request) {
  if (model.tokenizer == nullptr) {
    return FieldError(field, field,
                      " is a text, but the model directory has no tokenizer.json: send token ids.");
  }
  GenerationPrompt prompt;
  prompt.token_ids = model.tokenizer->Encode(text, add_special_tokens);
  prompt.text = text;
  for (const int32_t id : prompt.token_ids) {
    // A tokenizer may know more ids than the model has rows.
    if (id >= model.limits.vocab_size)
      return InvalidArgument("Token id ", id, " is out of vocabulary");
  }
  return AddPrompt(std::move(prompt), model.limits, request);
}

absl::Status FitPrompts(const EngineLimits& limits, bool echo_only, GenerationRequest* request) {
  for (GenerationPrompt& prompt : request->prompts) {
    TAOPD_RETURN_IF_ERROR(Fit(limits, echo_only, *request, &prompt));
  }
  return absl::OkStatus();
}

}  // namespace taopd
