#include "server/http/sglang/sglang_request.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/prompts.h"
#include "server/generation/request_limits.h"
#include "server/http/generation/prompts.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/sampling_request.h"
#include "server/http/structured/structured_output.h"

namespace taopd {
namespace {

constexpr int64_t kDefaultMaxNewTokens = 128;  // SGLang's
constexpr int64_t kMaxStreamedTokens = 4096;
constexpr char kIds[] = "input_ids";
constexpr char kText[] = "text";
constexpr char kStart[] = "logprob_start_len";
constexpr char kCandidates[] = "token_ids_logprob";

std::optional<HttpError> ReadPrompts(JsonFields& fields, const ServedModel& model,
                                     SglangRequest* request) {
  const nlohmann::json* ids = fields.Find(kIds);
  const nlohmann::json* text = fields.Find(kText);
  if ((ids == nullptr) == (text == nullptr)) {
    return BadRequest("Either text or input_ids must be provided, and not both.");
  }
  if (text != nullptr) {
    request->is_batch = text->is_array();
    if (text->is_string())
      return ErrorOf(AddPromptText(text->get<std::string>(), true, kText, model, request));
    for (const std::string& item : fields.Texts(kText)) {
      if (auto error = ErrorOf(AddPromptText(item, true, kText, model, request))) return error;
    }
  } else {
    if (!ids->is_array()) return WrongType(kIds, "a list of token ids, or a list of such lists");
    request->is_batch = !ids->empty() && ids->front().is_array();
    if (!request->is_batch) return AddPromptIds(*ids, kIds, model, request);
    for (const nlohmann::json& item : *ids) {
      if (!item.is_array()) return WrongType(kIds, "a list of lists of token ids");
      if (auto error = AddPromptIds(item, kIds, model, request)) return error;
    }
  }
  if (request->prompts.empty() && !fields.error())
    return BadRequest("You must pass at least one prompt");
  return std::nullopt;
}

// The form of the text, under SGLang's names. An empty text is none.
std::optional<HttpError> ReadGrammar(JsonFields& sampling, SglangRequest* request) {
  using Kind = GrammarSpec::Kind;
  for (const auto& [name, kind] :
       {std::pair("json_schema", Kind::kJsonSchema), std::pair("regex", Kind::kRegex),
        std::pair("ebnf", Kind::kEbnf), std::pair("structural_tag", Kind::kStructuralTag)}) {
    std::string text = sampling.Text(name).value_or("");
    if (text.empty()) continue;
    if (request->grammar) {
      return BadField(name,
                      Concat("Only one of regex, json_schema, ebnf or structural_tag can be set. "
                             "(parameter=",
                             name, ")"));
    }
    request->grammar.emplace();
    request->grammar->spec.kind = kind;
    request->grammar->spec.text = std::move(text);
    request->grammar->field = name;
  }
  return std::nullopt;
}

// max_new_tokens, min_new_tokens and no_stop_trim have names of their own.
std::optional<HttpError> ReadParams(JsonFields& sampling, const ServedModel& model,
                                    SglangRequest* request) {
  if (auto error = ReadSampling(sampling, SamplingParams(), model, request)) return error;
  request->include_stop_str_in_output |= sampling.Bool("no_stop_trim").value_or(false);
  request->max_tokens = sampling.ClampedInteger("max_new_tokens").value_or(kDefaultMaxNewTokens);
  request->sampling.min_tokens = sampling.Integer("min_new_tokens").value_or(0);
  request->seed = SignedSeed(sampling.Integer("sampling_seed"));
  if (auto error = ReadGrammar(sampling, request)) return error;
  const nlohmann::json* custom = sampling.Find("custom_params");
  if (custom != nullptr && !custom->empty()) {
    return BadField("custom_params",
                    "custom_params is not supported by this server. (parameter=custom_params)");
  }
  if (request->max_tokens < 0) {
    return BadField("max_new_tokens",
                    Concat("max_new_tokens must be at least 0, got ", request->max_tokens,
                           ". (parameter=max_new_tokens, value=", request->max_tokens, ")"));
  }
  if (request->stream && request->max_tokens > kMaxStreamedTokens) {
    return BadField("max_new_tokens",
                    Concat("max_new_tokens must be at most ", kMaxStreamedTokens,
                           " in a stream, whose events repeat everything so far, got ",
                           request->max_tokens, ". (parameter=max_new_tokens)"));
  }
  if (request->sampling.min_tokens < 0) {
    return BadField("min_new_tokens",
                    Concat("min_new_tokens must be at least 0, got ", request->sampling.min_tokens,
                           ". (parameter=min_new_tokens)"));
  }
  return sampling.error();
}

std::optional<HttpError> ReadStarts(JsonFields& fields, SglangRequest* request) {
  const nlohmann::json* value = fields.Find(kStart);
  const size_t num_prompts = request->prompts.size();
  if (value != nullptr && value->is_array()) {
    request->start_lens = fields.Integers(kStart);
    if (request->start_lens.size() != num_prompts) {
      return BadField(kStart, Concat(kStart, " has ", request->start_lens.size(), " entries for ",
                                     num_prompts, " prompts. (parameter=", kStart, ")"));
    }
  } else {
    request->start_lens.assign(num_prompts, fields.Integer(kStart).value_or(-1));
  }
  for (size_t i = 0; i < num_prompts; ++i) {
    GenerationPrompt& prompt = request->prompts[i];
    const int64_t num_tokens = static_cast<int64_t>(prompt.token_ids.size());
    int64_t& start = request->start_lens[i];
    if (start == -1) start = num_tokens - 1;
    if (start < 0 || start >= num_tokens) {
      return BadField(kStart,
                      Concat(kStart, " ", start, " must be -1, or from 0 to ", num_tokens - 1,
                             " for a prompt of ", num_tokens, " tokens. (parameter=", kStart, ")"));
    }
    prompt.score_start = start + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<HttpError> ReadSglangRequest(JsonFields& fields, JsonFields& sampling,
                                           const ServedModel& model, SglangRequest* request) {
  request->model = fields.Text("model").value_or("");
  request->request_id = fields.Text("rid").value_or("");
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  if (auto error = ErrorOf(CheckRequestId("rid", request->request_id))) return error;
  request->stream = fields.Bool("stream").value_or(false);
  request->return_logprob = fields.Bool("return_logprob").value_or(false);
  request->text_in_logprobs = fields.Bool("return_text_in_logprobs").value_or(false);
  request->base64 = fields.Bool("return_flat_raw_top_logprobs_b64").value_or(false);
  request->flat = fields.Bool("return_flat_raw_top_logprobs").value_or(false) || request->base64;
  request->return_token_ids = fields.Bool("return_prompt_token_ids").value_or(false);
  request->cache_salt = fields.Text("cache_salt").value_or(fields.Text("extra_key").value_or(""));
  if (auto error = ErrorOf(CheckCacheSalt(request->cache_salt))) return error;
  for (const char* name : {"priority", "log_metrics", "return_hidden_states", "lora_path",
                           "image_data", "session_params", "bootstrap_room"}) {
    const nlohmann::json* value = fields.Find(name);
    const bool neutral = value == nullptr || value->empty() || *value == nlohmann::json(0) ||
                         *value == nlohmann::json(false) || std::string(name) == "log_metrics" ||
                         std::string(name) == "priority";
    if (!neutral)
      return BadField(name,
                      Concat(name, " is not supported by this server. (parameter=", name, ")"));
  }
  std::optional<int32_t> top_k;
  if (auto error = ReadLogprobs(fields, "top_logprobs_num", "prompt", model, &top_k)) return error;
  if (auto error = ReadCandidates(fields, kCandidates, model, &request->scoring)) return error;
  fields.Find("sampling_params");
  if (auto error = ReadParams(sampling, model, request)) return error;
  if (auto error = ReadPrompts(fields, model, request)) return error;
  if (auto error = ReadStarts(fields, request)) return error;
  if (fields.error()) return fields.error();
  if (!request->scoring.one_list) {
    return BadField(kCandidates,
                    Concat(kCandidates, " must be one list of ids, which all positions ",
                           "share. (parameter=", kCandidates, ")"));
  }
  if (request->return_logprob) {
    request->logprobs = top_k.value_or(0);
    request->prompt_logprobs = top_k.value_or(0);
  }
  return FinishPrompts(model, /*echo_only=*/false, request);
}

std::variant<SglangRequest, HttpError> ParseSglangRequest(const std::string& body,
                                                          const ServedModel& model) {
  SglangRequest request;
  auto error = ReadBody(body, [&](const nlohmann::json& json) -> std::optional<HttpError> {
    const nlohmann::json none = nlohmann::json::object();
    const auto params = json.find("sampling_params");
    if (params != json.end() && !params->is_object() && !params->is_null())
      return WrongType("sampling_params", "a valid dictionary");
    JsonFields fields(json);
    JsonFields sampling(params != json.end() && params->is_object() ? *params : none,
                        "sampling_params.");
    auto refused = ReadSglangRequest(fields, sampling, model, &request);
    if (!refused) refused = FinishStructuredOutput(body, {"sampling_params"}, &request);
    if (!refused) {
      fields.LogUnknown("/generate");
      sampling.LogUnknown("/generate");
    }
    return refused;
  });
  if (error) return *std::move(error);
  return request;
}

}  // namespace taopd
