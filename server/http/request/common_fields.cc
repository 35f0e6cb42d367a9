#include "server/http/request/common_fields.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "common/engine/request_validation.h"
#include "common/engine/sampling/sampling_fields.h"
#include "common/text/stop_strings.h"
#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/request_body.h"
#include "server/http/request/structured_output.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxAllChoices = 16384;  // of all prompts of a request

// Reads the fields that are single numbers. Absent fields change nothing.
absl::Status ReadNumbers(JsonFields& fields, SamplingParams* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    const std::optional<double> value = field.is_integer
                                            ? std::optional<double>(fields.Integer(field.name))
                                            : fields.Number(field.name);
    if (!value) continue;
    const absl::Status set = SetSamplingField(field, *value, sampling);
    if (!set.ok()) return FieldStatus(field.name, std::string(set.message()));
  }
  return absl::OkStatus();
}

// Reads ids of the vocabulary. `what` begins the error of an id that is outside it.
absl::Status ReadIds(JsonFields& fields, const char* name, const char* what, int64_t max_ids,
                     const ServedModel& model, std::vector<int32_t>* out) {
  const std::vector<int64_t> ids = fields.Integers(name);
  if (static_cast<int64_t>(ids.size()) > max_ids) {
    return FieldError(name, name, " has ", ids.size(), " ids, at most ", max_ids, " are allowed.");
  }
  for (const int64_t id : ids) {
    if (id < 0 || id >= model.limits.vocab_size) {
      return FieldValueError(name, Concat("[", id, "]"), what,
                             " Vocabulary size: ", model.limits.vocab_size);
    }
    out->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(JsonFields& fields, const ServedModel& model, LogitBias* out) {
  constexpr char kName[] = "logit_bias";
  const ordered_json* object = fields.Find(kName);
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return WrongType(kName, "a valid dictionary");
  std::vector<LogitBias::Entry> entries;
  for (const auto& [key, bias] : object->items()) {
    if (!bias.is_number()) return WrongType(kName, "a dictionary of valid numbers");
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return FieldError(
          kName, "logit_bias contains key(s) that cannot be converted to integer token IDs: ['",
          Excerpt(key), "']");
    }
    if (id < 0 || id >= model.limits.vocab_size) {
      return FieldValueError(kName, Concat("[", id, "]"), "token_id(s) [", id,
                             "] in logit_bias contain out-of-vocab token ids. Vocabulary size: ",
                             model.limits.vocab_size);
    }
    // vLLM's limits. The engine has them too, but a float cannot hold every double.
    const double value = std::clamp(bias.get<double>(), -100.0, 100.0);
    entries.emplace_back(static_cast<int32_t>(id), static_cast<float>(value));
  }
  *out = LogitBias(std::move(entries));
  return absl::OkStatus();
}

absl::Status NeedsTokenizer(const char* name, const ServedModel& model) {
  if (model.tokenizer != nullptr) return absl::OkStatus();
  return FieldError(name, name, " is text, but the model directory has no tokenizer.json.");
}

absl::Status ReadStop(JsonFields& fields, const ServedModel& model, GenerationRequest* request) {
  request->include_stop_str_in_output = fields.Bool("include_stop_str_in_output").value_or(false);
  const ordered_json* stop = fields.Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  request->stop =
      stop->is_string() ? std::vector<std::string>{stop->get<std::string>()} : fields.Texts("stop");
  if (request->stop.empty()) return absl::OkStatus();
  if (const absl::Status valid = ValidateStopStrings(request->stop); !valid.ok())
    return FieldError("stop", valid.message(), ".");
  return NeedsTokenizer("stop", model);
}

// Reads bad words as ids, by vLLM's rules: the ids of each word at the beginning of a text, and
// those after a space if they are as many and begin with another id.
absl::Status ReadBadWords(JsonFields& fields, const ServedModel& model,
                          std::vector<std::vector<int32_t>>* out) {
  constexpr char kName[] = "bad_words";
  const std::vector<std::string> words = fields.Texts(kName);
  if (words.empty()) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(NeedsTokenizer(kName, model));
  std::set<std::string> seen;
  for (const std::string& word : words) {
    if (word.empty()) {
      return FieldError(kName, "bad_words cannot contain an empty string.");
    }
    if (!seen.insert(word).second) continue;
    const std::string bare =
        word.substr(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
    std::vector<int32_t> ids = model.tokenizer->Encode(bare, /*add_special_tokens=*/false);
    if (ids.empty()) {
      return FieldError(kName, "bad_words holds \"", Excerpt(word), "\", which has no tokens.");
    }
    std::vector<int32_t> spaced = model.tokenizer->Encode(" " + bare, /*add_special_tokens=*/false);
    const bool is_other = spaced.size() == ids.size() && spaced.front() != ids.front();
    out->push_back(std::move(ids));
    if (is_other) out->push_back(std::move(spaced));
  }
  return absl::OkStatus();
}

absl::Status ReadSeedAndNumChoices(JsonFields& fields, GenerationRequest* request) {
  request->seed = SignedSeed(fields.Integer("seed"));
  request->n = fields.Integer("n").value_or(1);
  return CheckNumChoices(request->n, request->sampling.temperature);
}

absl::Status ReadCacheSalt(JsonFields& fields, GenerationRequest* request) {
  const ordered_json* value = fields.Find("cache_salt");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
    return FieldError("cache_salt",
                      "Parameter 'cache_salt' must be a non-empty string if provided.");
  }
  request->cache_salt = value->get<std::string>();
  return CheckCacheSalt(request->cache_salt);
}

absl::Status ReadStreaming(JsonFields& fields, GenerationRequest* request) {
  request->stream = fields.Bool("stream").value_or(false);
  JsonFields& nested = fields.Nested("stream_options");
  TAOPD_RETURN_IF_ERROR(fields.error());
  const ordered_json* options = fields.Find("stream_options");
  if (options == nullptr || options->empty()) return absl::OkStatus();
  if (!request->stream) {
    return FieldError("stream_options", "Stream options can only be defined when `stream=True`.");
  }
  request->include_usage = nested.Bool("include_usage").value_or(false);
  request->continuous_usage =
      nested.Bool("continuous_usage_stats").value_or(false) && request->include_usage;
  return nested.error();
}

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

// Sets what is reported of generated tokens. As in vLLM with its default logprobs_mode,
// raw_logprobs, log-probs are those under softmax(logits), whatever the temperature.
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

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  if (name == model.name) return absl::OkStatus();
  return FieldStatus(
      "model",
      Concat("The model `", Excerpt(name), "` does not exist. Valid aliases: ", model.name, "."),
      absl::StatusCode::kNotFound);
}

absl::Status ReadEnvelope(JsonFields& fields, const ServedModel& model,
                          GenerationRequest* request) {
  request->model = fields.Text("model").value_or("");
  if (request->model.empty()) request->model = model.name;
  TAOPD_RETURN_IF_ERROR(CheckModelName(request->model, model));
  request->request_id = fields.Text("request_id").value_or("");
  TAOPD_RETURN_IF_ERROR(CheckRequestId("request_id", request->request_id));
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  TAOPD_RETURN_IF_ERROR(ReadCacheSalt(fields, request));
  return ReadStreaming(fields, request);
}

absl::Status ReadSampling(JsonFields& fields, const SamplingParams& defaults,
                          const ServedModel& model, GenerationRequest* request) {
  constexpr char kSpaces[] = "spaces_between_special_tokens";
  if (!fields.Bool(kSpaces).value_or(true))
    return FieldError(kSpaces, kSpaces, " is not supported by this server.");
  TAOPD_RETURN_IF_ERROR(ReadStructuredOutput(fields, request));
  SamplingParams& sampling = request->sampling;
  sampling = defaults;
  TAOPD_RETURN_IF_ERROR(ReadNumbers(fields, &sampling));
  sampling.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  TAOPD_RETURN_IF_ERROR(ReadIds(fields, "stop_token_ids",
                                "stop_token_ids contains out-of-vocab token id!", kMaxStopTokenIds,
                                model, &sampling.stop_token_ids));
  for (const int32_t id : model.further_eos_ids) {
    std::vector<int32_t>& ids = sampling.stop_token_ids;
    if (!sampling.ignore_eos && std::find(ids.begin(), ids.end(), id) == ids.end())
      ids.push_back(id);
  }
  if (fields.Find("allowed_token_ids") != nullptr) {
    sampling.allowed_token_ids.emplace();
    TAOPD_RETURN_IF_ERROR(ReadIds(fields, "allowed_token_ids",
                                  "allowed_token_ids contains out-of-vocab token id!",
                                  model.limits.vocab_size, model, &*sampling.allowed_token_ids));
    if (sampling.allowed_token_ids->empty() && fields.error().ok()) {
      return FieldValueError("allowed_token_ids", "[]", "allowed_token_ids is not None and empty!");
    }
  }
  TAOPD_RETURN_IF_ERROR(ReadLogitBias(fields, model, &sampling.logit_bias));
  TAOPD_RETURN_IF_ERROR(ReadBadWords(fields, model, &sampling.bad_words_ids));
  TAOPD_RETURN_IF_ERROR(ReadStop(fields, model, request));
  return ReadSeedAndNumChoices(fields, request);
}

absl::Status ReadLogprobs(JsonFields& fields, const char* name, const char* kind,
                          const ServedModel& model, std::optional<int32_t>* out) {
  const ordered_json* value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  const std::optional<int64_t> asked = AsClampedInteger(*value);
  if (!asked) {
    const std::string shown = value->is_string() ? Excerpt(value->get_ref<const std::string&>())
                                                 : std::string(value->type_name());
    return FieldValueError(name, shown, "`", name, "` must be an integer.");
  }
  if (*asked < -1) {
    return FieldValueError(name, *asked, "`", name, "` must be a positive value or -1.");
  }
  const int64_t k = *asked == -1 ? model.limits.vocab_size : *asked;
  if (k > model.limits.max_logprobs) {
    return FieldValueError(name, k, "Requested ", kind, " logprobs of ", k,
                           ", which is greater than max allowed: ", model.limits.max_logprobs);
  }
  *out = static_cast<int32_t>(k);
  return absl::OkStatus();
}

absl::Status CheckMaxTokens(int64_t max_tokens) {
  if (max_tokens >= 1) return absl::OkStatus();
  return FieldValueError("max_tokens", max_tokens, "max_tokens must be at least 1, got ",
                         max_tokens, ".");
}

absl::Status ReadPromptLogprobs(JsonFields& fields, const ServedModel& model,
                                GenerationRequest* request) {
  TAOPD_RETURN_IF_ERROR(
      ReadLogprobs(fields, "prompt_logprobs", "prompt", model, &request->prompt_logprobs));
  if (!request->stream || request->prompt_logprobs.value_or(0) == 0) return absl::OkStatus();
  return FieldError("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
}

absl::Status ReadCandidates(JsonFields& fields, const char* name, const ServedModel& model,
                            PromptScoring* scoring) {
  const ordered_json* value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array() || value->empty()) return WrongType(name, "a non-empty list");
  scoring->one_list = !value->front().is_array();
  const size_t num_lists = scoring->one_list ? 1 : value->size();
  for (size_t i = 0; i < num_lists; ++i) {
    const ordered_json& list = scoring->one_list ? *value : (*value)[i];
    if (!list.is_array()) return WrongType(name, "a list of lists of valid integers");
    if (i > 0 && static_cast<int32_t>(list.size()) != scoring->num_candidates) {
      return FieldError(name, name, " has lists of ", scoring->num_candidates, " and of ",
                        list.size(), " ids: pad them with -1.");
    }
    if (static_cast<int64_t>(list.size()) > model.limits.max_candidates) {
      return FieldError(name, name, " holds ", list.size(), " ids for a position, at most ",
                        model.limits.max_candidates, " are allowed.");
    }
    scoring->num_candidates = static_cast<int32_t>(list.size());
    for (const ordered_json& item : list) {
      const std::optional<int64_t> id = AsClampedInteger(item);
      if (!id) return WrongType(name, "lists of valid integers");
      if (*id < -1 || *id >= model.limits.vocab_size) {
        return FieldError(name, name, " contains out-of-vocab token id ", *id,
                          ". Vocabulary size: ", model.limits.vocab_size);
      }
      scoring->candidate_ids.push_back(static_cast<int32_t>(*id));
    }
  }
  if (scoring->num_candidates == 0) return WrongType(name, "a list of non-empty lists");
  return absl::OkStatus();
}

absl::Status ReadScoring(JsonFields& fields, const ServedModel& model, bool streams_start,
                         GenerationRequest* request) {
  constexpr char kStart[] = "prompt_logprobs_start";
  constexpr char kFormat[] = "prompt_logprobs_format";
  constexpr char kIds[] = "prompt_logprob_token_ids";
  PromptScoring& scoring = request->scoring;
  const std::optional<int64_t> start = fields.Integer(kStart);
  const std::optional<std::string> format = fields.Text(kFormat);
  TAOPD_RETURN_IF_ERROR(ReadCandidates(fields, kIds, model, &scoring));
  if (format && *format != "base64" && *format != "objects") {
    return FieldError(kFormat, kFormat, " must be \"objects\" or \"base64\", got \"",
                      Excerpt(*format), "\".");
  }
  scoring.compact = format == "base64";
  scoring.start = start.value_or(1);
  if (scoring.start < 1) {
    return FieldError(kStart, kStart, " must be at least 1, got ", scoring.start, ".");
  }
  const bool asked = start || scoring.compact || scoring.num_candidates > 0;
  if (asked && !request->prompt_logprobs) {
    const char* name = start ? kStart : scoring.compact ? kFormat : kIds;
    return FieldError(name, name, " needs prompt_logprobs.");
  }
  const bool loses_start = start && !streams_start;
  if (request->stream && (loses_start || scoring.compact || scoring.num_candidates > 0)) {
    const char* name = loses_start ? kStart : scoring.compact ? kFormat : kIds;
    return FieldError(name, name, " is not available when stream=true.");
  }
  return absl::OkStatus();
}

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
