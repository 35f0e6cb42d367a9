#include "server/http/dialects/protocols.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/http/request/request_body.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kDefaultMaxNewTokens = 128;  // SGLang's
constexpr int64_t kMaxStreamedTokens = 4096;
constexpr char kIds[] = "input_ids";
constexpr char kText[] = "text";
constexpr char kStart[] = "logprob_start_len";
constexpr char kCandidates[] = "token_ids_logprob";

absl::Status ReadPrompts(JsonFields& fields, const ServedModel& model, SglangRequest* request) {
  const ordered_json* ids = fields.Find(kIds);
  const ordered_json* text = fields.Find(kText);
  if ((ids == nullptr) == (text == nullptr)) {
    return InvalidArgument("Either text or input_ids must be provided, and not both.");
  }
  if (text != nullptr) {
    request->is_batch = text->is_array();
    if (text->is_string())
      return AddPromptText(text->get<std::string>(), true, kText, model, request);
    for (const std::string& item : fields.Texts(kText)) {
      TAOPD_RETURN_IF_ERROR(AddPromptText(item, true, kText, model, request));
    }
  } else {
    if (!ids->is_array()) return WrongType(kIds, "a list of token ids, or a list of such lists");
    request->is_batch = !ids->empty() && ids->front().is_array();
    if (!request->is_batch) return AddPromptIds(*ids, kIds, model, request);
    for (const ordered_json& item : *ids) {
      if (!item.is_array()) return WrongType(kIds, "a list of lists of token ids");
      TAOPD_RETURN_IF_ERROR(AddPromptIds(item, kIds, model, request));
    }
  }
  if (request->prompts.empty() && fields.error().ok())
    return InvalidArgument("You must pass at least one prompt");
  return absl::OkStatus();
}

// Reads the constraint of the text, under SGLang's names. An empty text means none.
absl::Status ReadGrammar(JsonFields& sampling, SglangRequest* request) {
  using Kind = GrammarSpec::Kind;
  for (const auto& [name, kind] :
       {std::pair("json_schema", Kind::kJsonSchema), std::pair("regex", Kind::kRegex),
        std::pair("ebnf", Kind::kEbnf), std::pair("structural_tag", Kind::kStructuralTag)}) {
    std::string text = sampling.Text(name).value_or("");
    if (text.empty()) continue;
    if (request->grammar) {
      return FieldError(name, "Only one of regex, json_schema, ebnf or structural_tag can be set.");
    }
    if (kind == Kind::kStructuralTag) {
      TAOPD_ASSIGN_OR_RETURN(text, StructuralTagText(text, name));
    }
    request->grammar = RequestedGrammar{{.kind = kind, .text = std::move(text)}, name};
  }
  return absl::OkStatus();
}

// max_new_tokens, min_new_tokens and no_stop_trim have names of their own.
absl::Status ReadParams(JsonFields& sampling, const ServedModel& model, SglangRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadSampling(sampling, SamplingParams(), model, request));
  request->include_stop_str_in_output |= sampling.Bool("no_stop_trim").value_or(false);
  request->max_tokens = sampling.ClampedInteger("max_new_tokens").value_or(kDefaultMaxNewTokens);
  request->sampling.min_tokens = sampling.Integer("min_new_tokens").value_or(0);
  request->seed = SignedSeed(sampling.Integer("sampling_seed"));
  TAOPD_RETURN_IF_ERROR(ReadGrammar(sampling, request));
  if (request->max_tokens < 0) {
    return FieldValueError("max_new_tokens", request->max_tokens,
                           "max_new_tokens must be at least 0, got ", request->max_tokens, ".");
  }
  if (request->stream && request->max_tokens > kMaxStreamedTokens) {
    return FieldError("max_new_tokens", "max_new_tokens must be at most ", kMaxStreamedTokens,
                      " in a stream, whose events repeat everything so far, got ",
                      request->max_tokens, ".");
  }
  if (request->sampling.min_tokens < 0) {
    return FieldError("min_new_tokens", "min_new_tokens must be at least 0, got ",
                      request->sampling.min_tokens, ".");
  }
  return sampling.error();
}

absl::Status ReadStarts(JsonFields& fields, SglangRequest* request) {
  const ordered_json* value = fields.Find(kStart);
  const size_t num_prompts = request->prompts.size();
  if (value != nullptr && value->is_array()) {
    request->start_lens = fields.Integers(kStart);
    if (request->start_lens.size() != num_prompts) {
      return FieldError(kStart, kStart, " has ", request->start_lens.size(), " entries for ",
                        num_prompts, " prompts.");
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
      return FieldError(kStart, kStart, " ", start, " must be -1, or from 0 to ", num_tokens - 1,
                        " for a prompt of ", num_tokens, " tokens.");
    }
    prompt.score_start = start + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSglangRequest(JsonFields& fields, const ServedModel& model,
                               SglangRequest* request) {
  request->request_id = fields.Text("rid").value_or("");
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  TAOPD_RETURN_IF_ERROR(CheckRequestId("rid", request->request_id));
  request->stream = fields.Bool("stream").value_or(false);
  request->return_logprob = fields.Bool("return_logprob").value_or(false);
  request->text_in_logprobs = fields.Bool("return_text_in_logprobs").value_or(false);
  request->base64 = fields.Bool("return_flat_raw_top_logprobs_b64").value_or(false);
  request->flat = fields.Bool("return_flat_raw_top_logprobs").value_or(false) || request->base64;
  request->return_token_ids = fields.Bool("return_prompt_token_ids").value_or(false);
  request->cache_salt = fields.Text("cache_salt").value_or(fields.Text("extra_key").value_or(""));
  TAOPD_RETURN_IF_ERROR(CheckCacheSalt(request->cache_salt));
  std::optional<int32_t> top_k;
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(fields, "top_logprobs_num", "prompt", model, &top_k));
  TAOPD_RETURN_IF_ERROR(ReadCandidates(fields, kCandidates, model, &request->scoring));
  JsonFields& sampling = fields.Nested("sampling_params");
  TAOPD_RETURN_IF_ERROR(fields.error());
  TAOPD_RETURN_IF_ERROR(ReadParams(sampling, model, request));
  TAOPD_RETURN_IF_ERROR(ReadPrompts(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadStarts(fields, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (!request->scoring.one_list) {
    return FieldError(kCandidates, kCandidates,
                      " must be one list of ids, which all positions share.");
  }
  if (request->return_logprob) {
    request->logprobs = top_k.value_or(0);
    request->prompt_logprobs = top_k.value_or(0);
  }
  return FinishPrompts(model, /*echo_only=*/false, request);
}

}  // namespace taopd
