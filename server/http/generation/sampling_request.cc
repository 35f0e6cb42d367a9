#include "server/http/generation/sampling_request.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/engine/request_validation.h"
#include "common/text/stop_strings.h"
#include "server/generation/request_limits.h"
#include "server/http/generation/request_body.h"
#include "server/http/structured/structured_output.h"
#include "server/serving/excerpt.h"
#include "server/serving/sampling_fields.h"

namespace taopd {
namespace {

HttpError Unsupported(const std::string& name) {
  return BadField(name, Concat(name, " is not supported by this server. (parameter=", name, ")"));
}

// Fields that vLLM obeys and this server cannot, unless they have the value that changes nothing.
std::optional<HttpError> RefuseUnsupported(JsonFields& fields) {
  if (fields.Bool("use_beam_search").value_or(false)) return Unsupported("use_beam_search");
  fields.Number("length_penalty");  // of beam search only
  if (!fields.Bool("spaces_between_special_tokens").value_or(true))
    return Unsupported("spaces_between_special_tokens");
  fields.Bool("watermarking");               // no server without a watermark obeys it
  fields.ClampedInteger("stream_interval");  // a chunk may hold more tokens than that
  for (const char* name :
       {"logprob_token_ids", "kv_transfer_params", "ec_transfer_params", "repetition_detection",
        "thinking_token_budget", "vllm_xargs", "routed_experts_prompt_start"}) {
    const nlohmann::json* value = fields.Find(name);
    const bool empty = value == nullptr || (value->is_structured() && value->empty()) ||
                       (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                       *value == nlohmann::json(0);
    if (!empty) return Unsupported(name);
  }
  return std::nullopt;
}

// The fields that are single numbers. Those that are absent keep the model's defaults.
std::optional<HttpError> ReadNumbers(JsonFields& fields, SamplingParams* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    const std::optional<double> value = field.is_integer
                                            ? std::optional<double>(fields.Integer(field.name))
                                            : fields.Number(field.name);
    if (!value) continue;
    const absl::Status set = SetSamplingField(field, *value, sampling);
    if (!set.ok()) return BadField(field.name, std::string(set.message()));
  }
  return std::nullopt;
}

// Ids that the vocabulary has; the first other one is described by `what`.
std::optional<HttpError> ReadIds(JsonFields& fields, const char* name, const char* what,
                                 int64_t max_ids, const ServedModel& model,
                                 std::vector<int32_t>* out) {
  const std::vector<int64_t> ids = fields.Integers(name);
  if (static_cast<int64_t>(ids.size()) > max_ids) {
    return BadField(name, Concat(name, " has ", ids.size(), " ids, at most ", max_ids,
                                 " are allowed. (parameter=", name, ")"));
  }
  for (const int64_t id : ids) {
    if (id < 0 || id >= model.limits.vocab_size) {
      return BadField(name, Concat(what, " Vocabulary size: ", model.limits.vocab_size,
                                   " (parameter=", name, ", value=[", id, "])"));
    }
    out->push_back(static_cast<int32_t>(id));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadLogitBias(JsonFields& fields, const ServedModel& model,
                                       LogitBias* out) {
  constexpr char kName[] = "logit_bias";
  const nlohmann::json* object = fields.Find(kName);
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) return WrongType(kName, "a valid dictionary");
  std::vector<LogitBias::Entry> entries;
  for (const auto& [key, bias] : object->items()) {
    if (!bias.is_number()) return WrongType(kName, "a dictionary of valid numbers");
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return BadField(kName,
                      Concat("logit_bias contains key(s) that cannot be converted to integer "
                             "token IDs: ['",
                             Excerpt(key), "'] (parameter=logit_bias)"));
    }
    if (id < 0 || id >= model.limits.vocab_size) {
      return BadField(kName,
                      Concat("token_id(s) [", id,
                             "] in logit_bias contain out-of-vocab token ids. Vocabulary "
                             "size: ",
                             model.limits.vocab_size, " (parameter=logit_bias, value=[", id, "])"));
    }
    // vLLM's limits, which the engine has too; here, because a float cannot hold every double.
    const double value = std::clamp(bias.get<double>(), -100.0, 100.0);
    entries.emplace_back(static_cast<int32_t>(id), static_cast<float>(value));
  }
  *out = LogitBias(std::move(entries));
  return std::nullopt;
}

std::optional<HttpError> NeedsTokenizer(const char* name, const ServedModel& model) {
  if (model.tokenizer != nullptr) return std::nullopt;
  return BadField(name, Concat(name,
                               " is text, but the model directory has no tokenizer.json. "
                               "(parameter=",
                               name, ")"));
}

std::optional<HttpError> ReadStop(JsonFields& fields, const ServedModel& model,
                                  GenerationRequest* request) {
  request->include_stop_str_in_output = fields.Bool("include_stop_str_in_output").value_or(false);
  const nlohmann::json* stop = fields.Find("stop");
  if (stop == nullptr) return std::nullopt;
  request->stop =
      stop->is_string() ? std::vector<std::string>{stop->get<std::string>()} : fields.Texts("stop");
  if (request->stop.empty()) return std::nullopt;
  if (const absl::Status valid = ValidateStopStrings(request->stop); !valid.ok())
    return BadField("stop", Concat(valid.message(), ". (parameter=stop)"));
  return NeedsTokenizer("stop", model);
}

// Bad words as ids, by vLLM's rules: each word as it stands at the beginning of a text, and as it
// stands after a space if that has as many ids and another first one.
std::optional<HttpError> ReadBadWords(JsonFields& fields, const ServedModel& model,
                                      std::vector<std::vector<int32_t>>* out) {
  constexpr char kName[] = "bad_words";
  const std::vector<std::string> words = fields.Texts(kName);
  if (words.empty()) return std::nullopt;
  if (auto error = NeedsTokenizer(kName, model)) return error;
  std::set<std::string> seen;
  for (const std::string& word : words) {
    if (word.empty()) {
      return BadField(kName, "bad_words cannot contain an empty string. (parameter=bad_words)");
    }
    if (!seen.insert(word).second) continue;
    const std::string bare =
        word.substr(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
    std::vector<int32_t> ids = model.tokenizer->Encode(bare, /*add_special_tokens=*/false);
    if (ids.empty()) {
      return BadField(kName, Concat("bad_words holds \"", Excerpt(word),
                                    "\", which has no tokens. (parameter=bad_words)"));
    }
    std::vector<int32_t> spaced = model.tokenizer->Encode(" " + bare, /*add_special_tokens=*/false);
    const bool is_other = spaced.size() == ids.size() && spaced.front() != ids.front();
    out->push_back(std::move(ids));
    if (is_other) out->push_back(std::move(spaced));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadCounts(JsonFields& fields, GenerationRequest* request) {
  request->seed = SignedSeed(fields.Integer("seed"));
  request->n = fields.Integer("n").value_or(1);
  if (auto error = ErrorOf(CheckNumChoices(request->n))) return error;
  if (request->n > 1 && request->sampling.temperature == 0.0f) {
    return BadField(
        "n", Concat("n must be 1 when using greedy sampling, got ", request->n, ". (parameter=n)"));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadCacheSalt(JsonFields& fields, GenerationRequest* request) {
  const nlohmann::json* value = fields.Find("cache_salt");
  if (value == nullptr) return std::nullopt;
  if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
    return BadField("cache_salt",
                    "Parameter 'cache_salt' must be a non-empty string if provided. "
                    "(parameter=cache_salt)");
  }
  request->cache_salt = value->get<std::string>();
  return ErrorOf(CheckCacheSalt(request->cache_salt));
}

std::optional<HttpError> ReadStreaming(JsonFields& fields, GenerationRequest* request) {
  request->stream = fields.Bool("stream").value_or(false);
  const nlohmann::json* options = fields.Find("stream_options");
  if (options == nullptr) return std::nullopt;
  if (!options->is_object()) return WrongType("stream_options", "a valid dictionary");
  if (options->empty()) return std::nullopt;
  if (!request->stream) {
    return BadField(
        "stream_options",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)");
  }
  JsonFields nested(*options, "stream_options.");
  request->include_usage = nested.Bool("include_usage").value_or(false);
  request->continuous_usage =
      nested.Bool("continuous_usage_stats").value_or(false) && request->include_usage;
  nested.LogUnknown("requests");
  return nested.error();
}

}  // namespace

std::optional<HttpError> ReadEnvelope(JsonFields& fields, const ServedModel& model,
                                      GenerationRequest* request) {
  request->model = fields.Text("model").value_or("");
  if (request->model.empty()) request->model = model.name;
  if (request->model != model.name) {
    return HttpError{404, "NotFoundError", "model",
                     Concat("The model `", Excerpt(request->model),
                            "` does not exist. Valid aliases: ", model.name, ".")};
  }
  request->request_id = fields.Text("request_id").value_or("");
  if (auto error = ErrorOf(CheckRequestId("request_id", request->request_id))) return error;
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  fields.Text("user");  // these three have no meaning here, as in vLLM without a router
  fields.Text("session_id");
  fields.ClampedInteger("priority");
  if (auto error = ReadCacheSalt(fields, request)) return error;
  return ReadStreaming(fields, request);
}

std::optional<HttpError> ReadSampling(JsonFields& fields, const SamplingParams& defaults,
                                      const ServedModel& model, GenerationRequest* request) {
  if (auto error = RefuseUnsupported(fields)) return error;
  if (auto error = ReadStructuredOutput(fields, request)) return error;
  SamplingParams& sampling = request->sampling;
  sampling = defaults;
  if (auto error = ReadNumbers(fields, &sampling)) return error;
  sampling.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  if (auto error =
          ReadIds(fields, "stop_token_ids", "stop_token_ids contains out-of-vocab token id!",
                  kMaxStopTokenIds, model, &sampling.stop_token_ids)) {
    return error;
  }
  for (const int32_t id : model.further_eos_ids) {
    std::vector<int32_t>& ids = sampling.stop_token_ids;
    if (!sampling.ignore_eos && std::find(ids.begin(), ids.end(), id) == ids.end())
      ids.push_back(id);
  }
  if (fields.Find("allowed_token_ids") != nullptr) {
    sampling.allowed_token_ids.emplace();
    if (auto error = ReadIds(fields, "allowed_token_ids",
                             "allowed_token_ids contains out-of-vocab token id!",
                             model.limits.vocab_size, model, &*sampling.allowed_token_ids)) {
      return error;
    }
    if (sampling.allowed_token_ids->empty() && !fields.error()) {
      return BadField("allowed_token_ids",
                      "allowed_token_ids is not None and empty! (parameter=allowed_token_ids, "
                      "value=[])");
    }
  }
  if (auto error = ReadLogitBias(fields, model, &sampling.logit_bias)) return error;
  if (auto error = ReadBadWords(fields, model, &sampling.bad_words_ids)) return error;
  if (auto error = ReadStop(fields, model, request)) return error;
  return ReadCounts(fields, request);
}

std::optional<HttpError> ReadLogprobs(JsonFields& fields, const char* name, const char* kind,
                                      const ServedModel& model, std::optional<int32_t>* out) {
  const nlohmann::json* value = fields.Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> asked = AsClampedInteger(*value);
  if (!asked) {
    const std::string shown = value->is_string() ? Excerpt(value->get_ref<const std::string&>())
                                                 : std::string(value->type_name());
    return BadField(
        name, Concat("`", name, "` must be an integer. (parameter=", name, ", value=", shown, ")"));
  }
  if (*asked < -1) {
    return BadField(name, Concat("`", name, "` must be a positive value or -1. (parameter=", name,
                                 ", value=", *asked, ")"));
  }
  const int64_t k = *asked == -1 ? model.limits.vocab_size : *asked;
  if (k > model.limits.max_logprobs) {
    return BadField(name, Concat("Requested ", kind, " logprobs of ", k,
                                 ", which is greater than max allowed: ", model.limits.max_logprobs,
                                 " (parameter=", name, ", value=", k, ")"));
  }
  *out = static_cast<int32_t>(k);
  return std::nullopt;
}

std::optional<HttpError> ReadCandidates(JsonFields& fields, const char* name,
                                        const ServedModel& model, PromptScoring* scoring) {
  const nlohmann::json* value = fields.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->empty()) return WrongType(name, "a non-empty list");
  scoring->one_list = !value->front().is_array();
  const size_t num_lists = scoring->one_list ? 1 : value->size();
  for (size_t i = 0; i < num_lists; ++i) {
    const nlohmann::json& list = scoring->one_list ? *value : (*value)[i];
    if (!list.is_array()) return WrongType(name, "a list of lists of valid integers");
    if (i > 0 && static_cast<int32_t>(list.size()) != scoring->num_candidates) {
      return BadField(
          name, Concat(name, " has lists of ", scoring->num_candidates, " and of ", list.size(),
                       " ids: fill them up with -1. (parameter=", name, ")"));
    }
    if (static_cast<int64_t>(list.size()) > model.limits.max_candidates) {
      return BadField(name,
                      Concat(name, " holds ", list.size(), " ids for a position, at most ",
                             model.limits.max_candidates, " are allowed. (parameter=", name, ")"));
    }
    scoring->num_candidates = static_cast<int32_t>(list.size());
    for (const nlohmann::json& item : list) {
      const std::optional<int64_t> id = AsClampedInteger(item);
      if (!id) return WrongType(name, "lists of valid integers");
      if (*id < -1 || *id >= model.limits.vocab_size) {
        return BadField(name, Concat(name, " contains out-of-vocab token id ", *id,
                                     ". Vocabulary size: ", model.limits.vocab_size,
                                     " (parameter=", name, ")"));
      }
      scoring->candidate_ids.push_back(static_cast<int32_t>(*id));
    }
  }
  if (scoring->num_candidates == 0) return WrongType(name, "a list of non-empty lists");
  return std::nullopt;
}

std::optional<HttpError> ReadScoring(JsonFields& fields, const ServedModel& model,
                                     GenerationRequest* request) {
  constexpr char kStart[] = "prompt_logprobs_start";
  constexpr char kFormat[] = "prompt_logprobs_format";
  constexpr char kIds[] = "prompt_logprob_token_ids";
  PromptScoring& scoring = request->scoring;
  const std::optional<int64_t> start = fields.Integer(kStart);
  const std::optional<std::string> format = fields.Text(kFormat);
  if (auto error = ReadCandidates(fields, kIds, model, &scoring)) return error;
  if (format && *format != "base64" && *format != "objects") {
    return BadField(kFormat, Concat(kFormat, " must be \"objects\" or \"base64\", got \"",
                                    Excerpt(*format), "\". (parameter=", kFormat, ")"));
  }
  scoring.compact = format == "base64";
  scoring.start = start.value_or(1);
  if (scoring.start < 1) {
    return BadField(kStart, Concat(kStart, " must be at least 1, got ", scoring.start,
                                   ". (parameter=", kStart, ")"));
  }
  const bool asked = start || scoring.compact || scoring.num_candidates > 0;
  if (asked && !request->prompt_logprobs) {
    const char* name = start ? kStart : scoring.compact ? kFormat : kIds;
    return BadField(name, Concat(name, " needs prompt_logprobs. (parameter=", name, ")"));
  }
  return std::nullopt;
}

}  // namespace taopd
