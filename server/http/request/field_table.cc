#include "server/http/request/field_table.h"

#include <initializer_list>
#include <span>

#include "common/engine/sampling/sampling_fields.h"

namespace taopd {
namespace {

using enum FieldUse;

constexpr FieldDoc kEnvelopeFields[] = {
    {"model", "string", "The served model, or nothing."},
    {"request_id", "string", "Part of the answer's id; the header X-Request-Id replaces it."},
    {"user", "string", "No effect.", kIgnored},
    {"session_id", "string", "No effect.", kIgnored},
    {"priority", "integer", "No effect.", kIgnored},
    {"cache_salt", "string", "Cached prefixes are shared only between requests with equal salts."},
    {"stream", "boolean", "Send tokens as they are generated, as server-sent events."},
    {"stream_options", "object", "include_usage and continuous_usage_stats."},
};

constexpr FieldDoc kChoiceFields[] = {
    {"n", "integer", "Choices for each prompt."},
    {"seed", "integer", "Choice i has seed + i. -1 or none means a random seed."},
};

constexpr FieldDoc kEndAndFormFields[] = {
    {"ignore_eos", "boolean", "Continue after an end-of-sequence token."},
    {"stop", "any", "A text or texts that end the answer."},
    {"stop_token_ids", "array", "Token ids that end the answer."},
    {"include_stop_str_in_output", "boolean", "Keep the stop text or token in the answer."},
    {"skip_special_tokens", "boolean", "Leave special tokens out of the text."},
    {"spaces_between_special_tokens", "boolean", "Must be true."},
    {"logit_bias", "object", "Map from token id to the number that is added to its logit."},
    {"allowed_token_ids", "array", "The only tokens that may be generated."},
    {"bad_words", "array", "Texts that may not be generated."},
    {"watermarking", "boolean", "No effect.", kIgnored},
    {"stream_interval", "integer", "No effect: a chunk has one token or more.", kIgnored},
    {"length_penalty", "number", "No effect without beam search.", kIgnored},
    {"use_beam_search", "boolean", "Only false is supported.", kRefused},
    {"response_format", "object",
     "The form of the text: text, json_object, json_schema or structural_tag."},
    {"structured_outputs", "object",
     "The form of the text: json, regex, choice, grammar, json_object or structural_tag."},
    {"logprob_token_ids", "array", "Not supported.", kRefused},
    {"repetition_detection", "object", "Not supported.", kRefused},
    {"thinking_token_budget", "integer", "Not supported.", kRefused},
    {"kv_transfer_params", "object", "Not supported.", kRefused},
    {"ec_transfer_params", "object", "Not supported.", kRefused},
    {"vllm_xargs", "object", "Not supported.", kRefused},
    {"routed_experts_prompt_start", "integer", "Only 0 is supported.", kRefused},
};

constexpr FieldDoc kScoringFields[] = {
    {"prompt_logprobs", "integer",
     "Log-probs of the prompt's tokens, and of this many most probable ones."},
    {"prompt_logprobs_start", "integer", "The first position that is reported, from 1."},
    {"prompt_logprob_token_ids", "array", "Ids whose log-probs are reported at each position."},
    {"prompt_logprobs_format", "string", "\"objects\", or \"base64\" for arrays."},
};

constexpr FieldDoc kReportFields[] = {
    {"max_tokens", "integer", "Maximum number of tokens to generate."},
    {"echo", "boolean", "Repeat the prompt, or the last message, in the answer."},
    {"return_token_ids", "boolean", "Report token ids, too."},
    {"return_tokens_as_token_ids", "boolean", "Name tokens \"token_id:N\" in log-probs."},
    {"add_special_tokens", "boolean", "Whether the tokenizer adds its special tokens to a text."},
    {"truncate_prompt_tokens", "integer",
     "Keep this many tokens of each prompt. -1 means as many as fit."},
    {"truncation_side", "string", "\"left\" drops the beginning, \"right\" the end."},
};

constexpr FieldDoc kChatTemplateFields[] = {
    {"messages", "array", "The conversation; content is a text or a list of text parts."},
    {"tools", "array", "Shown to the model if its template does."},
    {"tool_choice", "any",
     "\"none\", \"auto\" (--tool-call-parser takes calls out of the text), \"required\" or a named "
     "function."},
    {"documents", "array", "Shown to the model if its template does."},
    {"chat_template", "string", "Not supported: the model's own is used.", kRefused},
    {"chat_template_kwargs", "object", "Variables of the template, such as enable_thinking."},
    {"add_generation_prompt", "boolean", "Begin the assistant's message."},
    {"continue_final_message", "boolean", "Continue the last message."},
    {"reasoning_effort", "string",
     "A variable of the template. \"none\" sets enable_thinking to false."},
    {"mm_processor_kwargs", "object", "Not supported.", kRefused},
    {"media_io_kwargs", "object", "Not supported.", kRefused},
};

constexpr FieldDoc kCompletionFields[] = {
    {"prompt", "any", "A text, token ids, or a list of either."},
    {"prompt_embeds", "any", "Not supported.", kRefused},
    {"logprobs", "integer", "Log-probs of generated tokens, and of this many most probable ones."},
    {"suffix", "string", "Not supported.", kRefused},
};

constexpr FieldDoc kChatFields[] = {
    {"max_completion_tokens", "integer", "Replaces max_tokens."},
    {"logprobs", "boolean", "Log-probs of generated tokens."},
    {"top_logprobs", "integer", "Also report this many most probable tokens."},
    {"return_prompt_text", "boolean", "Report the rendered conversation."},
    {"parallel_tool_calls", "boolean", "If false, only the first tool call is returned."},
    {"include_reasoning", "boolean", "No effect.", kIgnored},
};

constexpr FieldDoc kTokenFields[] = {
    {"token_ids", "array", "The prompt."},
    {"sampling_params", "object", "Settings of sampling and of the answer's contents."},
    {"output_mode", "string", "\"tokens\", or \"text\" for texts, too."},
    {"return_token_ids", "boolean", "Report the prompt's ids."},
    {"features", "object", "Not supported.", kRefused},
    {"content_parts", "array", "Not supported.", kRefused},
    {"kv_transfer_params", "object", "Not supported.", kRefused},
    {"ec_transfer_params", "object", "Not supported.", kRefused},
    {"token_offsets", "array", "No effect.", kIgnored},
    {"reasoning_ended", "boolean", "No effect.", kIgnored},
    {"reasoning_parser_kwargs", "object", "No effect.", kIgnored},
};

constexpr FieldDoc kTokenSamplingFields[] = {
    {"max_tokens", "integer",
     "Maximum number of tokens to generate; by default, as many as the context leaves."},
    {"logprobs", "integer", "Log-probs of generated tokens, and of this many most probable ones."},
    {"prompt_logprob_start", "integer", "With lists of prompt_logprob_token_ids: the first row."},
    {"detokenize", "boolean", "Whether log-probs name their tokens."},
    {"flat_logprobs", "boolean", "No effect.", kIgnored},
    {"skip_reading_prefix_cache", "boolean", "No effect.", kIgnored},
    {"skip_clone", "boolean", "No effect.", kIgnored},
    {"output_kind", "integer", "No effect.", kIgnored},
};

constexpr FieldDoc kSglangFields[] = {
    {"text", "any", "A prompt or prompts as text."},
    {"input_ids", "array", "A prompt or prompts as token ids."},
    {"sampling_params", "object", "Settings of sampling."},
    {"model", "string", "No effect.", kIgnored},
    {"rid", "string", "The answer's id."},
    {"stream", "boolean", "Send everything so far with each token, as server-sent events."},
    {"return_logprob", "boolean", "Report log-probs."},
    {"logprob_start_len", "any", "First prompt position with log-probs. -1 means the last token."},
    {"top_logprobs_num", "integer", "Also report this many most probable tokens."},
    {"token_ids_logprob", "array", "Also report these ids."},
    {"return_text_in_logprobs", "boolean", "Name tokens by their text."},
    {"return_flat_raw_top_logprobs", "boolean", "The prompt's top log-probs as flat arrays."},
    {"return_flat_raw_top_logprobs_b64", "boolean",
     "The prompt's top log-probs as flat arrays in base64."},
    {"return_prompt_token_ids", "boolean", "Report the prompt's ids."},
    {"cache_salt", "string", "Cached prefixes are shared only between requests with equal salts."},
    {"extra_key", "string", "Same as cache_salt."},
    {"priority", "integer", "No effect.", kIgnored},
    {"log_metrics", "boolean", "No effect.", kIgnored},
    {"return_hidden_states", "boolean", "Only false is supported.", kRefused},
    {"lora_path", "string", "Not supported.", kRefused},
    {"image_data", "any", "Not supported.", kRefused},
    {"video_data", "any", "Not supported.", kRefused},
    {"audio_data", "any", "Not supported.", kRefused},
    {"input_embeds", "any", "Not supported.", kRefused},
    {"custom_logit_processor", "any", "Not supported.", kRefused},
    {"token_ids_logprob_positions", "any", "Not supported.", kRefused},
    {"session_params", "object", "Not supported.", kRefused},
    {"bootstrap_room", "integer", "Not supported.", kRefused},
};

constexpr FieldDoc kSglangSamplingFields[] = {
    {"max_new_tokens", "integer",
     "Maximum number of tokens to generate; with 0, the prompt is only scored."},
    {"min_new_tokens", "integer", "Minimum number of tokens before the end."},
    {"sampling_seed", "integer", "Seed of the random numbers."},
    {"no_stop_trim", "boolean", "Keep the stop text or token in the answer."},
    {"json_schema", "string", "A JSON schema that the text satisfies."},
    {"regex", "string", "A regular expression that the text matches."},
    {"ebnf", "string", "A grammar whose rule root is the text."},
    {"structural_tag", "string", "xgrammar's structural tag, as JSON."},
    {"custom_params", "object", "Not supported.", kRefused},
    {"stop_regex", "any", "Not supported.", kRefused},
};

constexpr FieldDoc kTrlFields[] = {
    {"sequences", "array", "Prompts with their completions, as token ids."},
    {"prompt_lengths", "array", "Positions at which the completions begin."},
    {"top_logprobs", "integer", "Number of log-probs that are reported for each token."},
    {"temperature", "number", "No effect on scores.", kIgnored},
    {"response_format", "string", "\"json\", or \"binary\" for arrays in base64."},
};

constexpr FieldDoc kTokenizeFields[] = {
    {"model", "string", "The served model, or nothing."},
    {"prompt", "string", "The text. Without it, messages are required."},
    {"add_special_tokens", "boolean", "By default true for a prompt and false for messages."},
    {"return_token_strs", "boolean", "Report the tokens as the vocabulary spells them."},
};

constexpr FieldDoc kDetokenizeFields[] = {
    {"model", "string", "The served model, or nothing."},
    {"tokens", "array", "Token ids."},
};

std::vector<FieldDoc> Join(std::initializer_list<std::span<const FieldDoc>> lists) {
  std::vector<FieldDoc> joined;
  for (std::span<const FieldDoc> list : lists)
    joined.insert(joined.end(), list.begin(), list.end());
  return joined;
}

std::vector<FieldDoc> SamplingFieldDocs() {
  std::vector<FieldDoc> numbers;
  for (const SamplingField& field : SamplingFields())
    numbers.push_back({field.name, field.is_integer ? "integer" : "number", field.doc});
  return Join({kChoiceFields, numbers, kEndAndFormFields});
}

std::vector<FieldDoc> SharedFieldDocs() {
  return Join({kEnvelopeFields, SamplingFieldDocs(), kScoringFields, kReportFields});
}

}  // namespace

const std::vector<RouteDoc>& RouteDocs() {
  static const auto* const docs = new std::vector<RouteDoc>{
      {"POST", "/v1/completions", "Completions and log-probs, like vLLM's.",
       Join({SharedFieldDocs(), kCompletionFields})},
      {"POST", "/v1/chat/completions", "Answers in a conversation, like vLLM's.",
       Join({SharedFieldDocs(), kChatTemplateFields, kChatFields})},
      {"POST", "/inference/v1/generate", "Tokens in, tokens out, like vLLM's.",
       Join({kEnvelopeFields, kTokenFields}),
       Join({SamplingFieldDocs(), kScoringFields, kTokenSamplingFields})},
      {"POST", "/generate", "Completions and log-probs, like SGLang's.", Join({kSglangFields}),
       Join({SamplingFieldDocs(), kSglangSamplingFields})},
      {"POST", "/get_sequence_logprobs/", "Scores of completions, like TRL's.", Join({kTrlFields})},
      {"POST", "/tokenize", "Tokens of a text or a conversation.",
       Join({kChatTemplateFields, kTokenizeFields})},
      {"POST", "/detokenize", "The text of tokens.", Join({kDetokenizeFields})},
      {"GET", "/tokenizer_info", "The tokenizer's configuration."},
      {"GET", "/v1/models", "The served model."},
      {"GET", "/version", "The server's version."},
      {"GET", "/health_generate", "200 while the model serves."},
      {"GET", "/get_model_info", "The served model, like SGLang's."},
      {"GET", "/model_info", "Same as /get_model_info."},
      {"GET", "/server_info", "Limits and load, like SGLang's."},
      {"GET", "/get_server_info", "Same as /server_info."},
      {"GET", "/load", "Number of running and waiting requests."},
      {"GET", "/config", "The effective settings; secrets are left out."},
      {"GET", "/openapi.json", "This description for programs."},
      {"GET", "/docs", "This description.", {}, {}, "text/html"},
  };
  return *docs;
}

}  // namespace taopd
