#include "server/http/completion_request.h"

#include <absl/synchronization/mutex.h>
#include <algorithm>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/io/jsonl.h"
#include "common/text/stop_strings.h"
#include "common/wire/teacher_protocol.h"
#include "server/http/json_fields.h"
#include "server/serving/excerpt.h"
#include "server/serving/sampling_fields.h"

namespace taopd {
namespace {

constexpr size_t kMaxPrompts = 1024;  // vLLM's VLLM_MAX_COMPLETION_PROMPTS
constexpr int kMaxParallelParses = 2;
constexpr int64_t kMaxChoices = 16384;  // of all prompts; vLLM's VLLM_MAX_N_SEQUENCES
constexpr size_t kMaxCacheSaltBytes = 1024;

// A parsed body takes up to some 20 times the memory of its text, so only few are held at once.
class ParseSlot {
 public:
  ParseSlot() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* used) { return *used < kMaxParallelParses; }, &num_used_));
    ++num_used_;
  }
  ~ParseSlot() {
    absl::MutexLock lock(&mutex_);
    --num_used_;
  }
  ParseSlot(const ParseSlot&) = delete;
  ParseSlot& operator=(const ParseSlot&) = delete;

 private:
  ABSL_CONST_INIT static absl::Mutex mutex_;
  static int num_used_;
};
ABSL_CONST_INIT absl::Mutex ParseSlot::mutex_(absl::kConstInit);
int ParseSlot::num_used_ = 0;

std::optional<HttpError> AddIds(const nlohmann::json& ids, const ServedModel& model,
                                CompletionRequest* request) {
  if (ids.empty()) return BadRequest("The decoder prompt cannot be empty");
  CompletionPrompt prompt;
  prompt.token_ids.reserve(ids.size());
  for (const nlohmann::json& item : ids) {
    const std::optional<int64_t> id = AsInteger(item);
    if (!id) return WrongType("prompt", "texts, or lists of valid integers");
    if (*id < 0) return WrongType("prompt", "greater than or equal to 0");
    if (*id >= model.limits.vocab_size) {
      return BadRequest(Concat("Token id ", *id, " is out of vocabulary"));
    }
    prompt.token_ids.push_back(static_cast<int32_t>(*id));
  }
  request->prompts.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<HttpError> AddText(const std::string& text, bool add_special_tokens,
                                 const ServedModel& model, CompletionRequest* request) {
  if (model.tokenizer == nullptr) {
    return BadField(
        "prompt",
        "prompt is a text, but the model directory has no tokenizer.json: send token ids. "
        "(parameter=prompt)");
  }
  CompletionPrompt prompt;
  prompt.token_ids = model.tokenizer->Encode(text, add_special_tokens);
  prompt.text = text;
  if (prompt.token_ids.empty()) return BadRequest("The decoder prompt cannot be empty");
  for (const int32_t id : prompt.token_ids) {
    // A tokenizer that knows more ids than the model has rows.
    if (id >= model.limits.vocab_size)
      return BadRequest(Concat("Token id ", id, " is out of vocabulary"));
  }
  request->prompts.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<HttpError> ReadPrompts(JsonFields& fields, const ServedModel& model,
                                     CompletionRequest* request) {
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  const nlohmann::json* prompt = fields.Find("prompt");
  if (prompt == nullptr || (prompt->is_string() && prompt->get_ref<const std::string&>().empty())) {
    return BadField(
        "prompt",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)");
  }
  if (prompt->is_string()) {
    return AddText(prompt->get_ref<const std::string&>(), add_special_tokens, model, request);
  }
  if (!prompt->is_array())
    return WrongType("prompt", "a text, a list of texts or a list of token ids");
  if (prompt->empty()) return std::nullopt;
  if (prompt->front().is_number()) return AddIds(*prompt, model, request);
  if (prompt->size() > kMaxPrompts) {
    return BadRequest(Concat("prompt list length ", prompt->size(),
                             " exceeds the maximum allowed count of ", kMaxPrompts, "."));
  }
  const bool texts = prompt->front().is_string();
  for (const nlohmann::json& item : *prompt) {
    if (texts ? !item.is_string() : !item.is_array()) {
      return WrongType("prompt", "a list of texts or a list of lists of token ids");
    }
    std::optional<HttpError> error =
        texts ? AddText(item.get_ref<const std::string&>(), add_special_tokens, model, request)
              : AddIds(item, model, request);
    if (error) return error;
  }
  return std::nullopt;
}

// Fields that vLLM obeys and this server cannot, unless they have the value that changes nothing.
std::optional<HttpError> RefuseUnsupported(JsonFields& fields) {
  const auto refuse = [](const std::string& name) {
    return BadField(name, Concat(name, " is not supported by this server. (parameter=", name, ")"));
  };
  if (fields.Number("priority").value_or(0.0) != 0.0) return refuse("priority");
  for (const char* name : {"stream", "use_beam_search"}) {
    if (fields.Bool(name).value_or(false)) return refuse(name);
  }
  if (!fields.Bool("spaces_between_special_tokens").value_or(true))
    return refuse("spaces_between_special_tokens");
  for (const char* name :
       {"prompt_embeds", "logprob_token_ids", "truncate_prompt_tokens", "structured_outputs",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "kv_transfer_params",
        "ec_transfer_params", "repetition_detection", "thinking_token_budget",
        "return_token_offsets", "routed_experts_prompt_start"}) {
    const nlohmann::json* value = fields.Find(name);
    const bool empty = value == nullptr || (value->is_structured() && value->empty()) ||
                       (value->is_string() && value->get_ref<const std::string&>().empty());
    if (!empty) return refuse(name);
  }
  const nlohmann::json* format = fields.Find("response_format");
  if (format != nullptr && !(format->is_object() && format->contains("type") &&
                             format->at("type") == nlohmann::json("text"))) {
    return BadField("response_format",
                    "response_format is not supported by this server, except {\"type\": \"text\"}. "
                    "(parameter=response_format)");
  }
  if (!fields.Text("suffix").value_or("").empty())
    return BadRequest("suffix is not currently supported");
  if (fields.Find("stream_options") != nullptr) {
    return BadField(
        "stream_options",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)");
  }
  return std::nullopt;
}

std::optional<HttpError> ReadLogprobs(JsonFields& fields, const char* name, const char* kind,
                                      const ServedModel& model, std::optional<int32_t>* out) {
  const nlohmann::json* value = fields.Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> asked = AsInteger(*value);
  if (!asked) {
    return BadField(name, Concat("`", name, "` must be an integer. (parameter=", name, ", value=",
                                 value->is_string() ? Excerpt(value->get_ref<const std::string&>())
                                                    : std::string(value->type_name()),
                                 ")"));
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
                                 const ServedModel& model, std::vector<int32_t>* out) {
  for (const int64_t id : fields.Integers(name)) {
    if (id < 0 || id >= model.limits.vocab_size) {
      return BadField(name, Concat(what, " Vocabulary size: ", model.limits.vocab_size,
                                   " (parameter=", name, ", value=[", id, "])"));
    }
    out->push_back(static_cast<int32_t>(id));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadLogitBias(JsonFields& fields, const ServedModel& model,
                                       std::map<int32_t, float>* out) {
  constexpr char kName[] = "logit_bias";
  const nlohmann::json* object = fields.Find(kName);
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) return WrongType(kName, "a valid dictionary");
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
    (*out)[static_cast<int32_t>(id)] = static_cast<float>(value);
  }
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
                                  CompletionRequest* request) {
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

std::optional<HttpError> ReadCounts(JsonFields& fields, CompletionRequest* request) {
  request->seed = fields.Integer("seed");
  if (request->seed == -1) request->seed.reset();  // vLLM: none

  request->n = fields.Integer("n").value_or(1);
  if (request->n < 1)
    return BadField("n", Concat("n must be at least 1, got ", request->n, ". (parameter=n)"));
  if (request->n > kMaxChoices) {
    return BadField(
        "n", Concat("n must be at most ", kMaxChoices, ", got ", request->n, ". (parameter=n)"));
  }
  if (fields.Integer("best_of").value_or(request->n) != request->n) {
    return BadField("best_of",
                    "best_of is not supported by this server, unless it equals n. "
                    "(parameter=best_of)");
  }
  if (request->n > 1 && request->sampling.temperature == 0.0f) {
    return BadField(
        "n", Concat("n must be 1 when using greedy sampling, got ", request->n, ". (parameter=n)"));
  }
  request->echo = fields.Bool("echo").value_or(false);
  request->max_tokens = fields.Integer("max_tokens").value_or(16);
  if (request->max_tokens < 1 && !(request->max_tokens == 0 && request->echo)) {
    return BadField("max_tokens",
                    Concat("max_tokens must be at least 1, got ", request->max_tokens,
                           ". (parameter=max_tokens, value=", request->max_tokens, ")"));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadSampling(JsonFields& fields, const ServedModel& model,
                                      CompletionRequest* request) {
  SamplingParams& sampling = request->sampling;
  sampling = model.sampling_defaults;
  if (auto error = ReadNumbers(fields, &sampling)) return error;
  sampling.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  if (auto error =
          ReadIds(fields, "stop_token_ids", "stop_token_ids contains out-of-vocab token id!", model,
                  &sampling.stop_token_ids)) {
    return error;
  }
  if (fields.Find("allowed_token_ids") != nullptr) {
    sampling.allowed_token_ids.emplace();
    if (auto error = ReadIds(fields, "allowed_token_ids",
                             "allowed_token_ids contains out-of-vocab token id!", model,
                             &*sampling.allowed_token_ids)) {
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

std::optional<HttpError> ReadCacheSalt(JsonFields& fields, CompletionRequest* request) {
  const std::optional<std::string> salt = fields.Text("cache_salt");
  if (!salt) return std::nullopt;
  if (salt->empty() || salt->size() > kMaxCacheSaltBytes) {
    return BadField("cache_salt", Concat("cache_salt must have between 1 and ", kMaxCacheSaltBytes,
                                         " bytes, got ", salt->size(), ". (parameter=cache_salt)"));
  }
  request->cache_salt = *salt;
  return std::nullopt;
}

// Cuts what each prompt may generate to what the context leaves.
std::optional<HttpError> FitIntoContext(const ServedModel& model, CompletionRequest* request) {
  const int64_t limit = std::min(model.limits.max_model_len, model.limits.max_generation_len);
  for (CompletionPrompt& prompt : request->prompts) {
    const int64_t num_input = static_cast<int64_t>(prompt.token_ids.size());
    if (num_input == limit && request->max_tokens == 0) {
      return BadRequest(
          Concat("The decoder prompt (length ", num_input,
                 ") plus the number of requested output tokens (at least 1) is longer than the "
                 "maximum model length of ",
                 limit, "."));
    }
    if (num_input >= limit) {
      return BadField(
          "input_tokens",
          Concat("This model's maximum context length is ", limit,
                 " tokens. However, you requested ", request->max_tokens,
                 " output tokens and your prompt contains ", num_input,
                 " input tokens, for a total of ",
                 // Both fit in 63 bits, their sum may not.
                 static_cast<uint64_t>(request->max_tokens) + static_cast<uint64_t>(num_input),
                 " tokens. Please reduce the length of the input prompt or the number of requested "
                 "output tokens. (parameter=input_tokens, value=",
                 num_input, ")"));
    }
    const int64_t asked = std::max<int64_t>(request->max_tokens, 1);
    prompt.max_new_tokens = std::min(asked, limit - num_input);
    if (prompt.max_new_tokens < asked) {
      LogDebug("max_tokens is cut to what the context leaves",
               {{"request_id", request->request_id},
                {"max_tokens", asked},
                {"max_new_tokens", prompt.max_new_tokens}});
    }
    if (request->sampling.min_tokens > prompt.max_new_tokens) {
      return BadField(
          "min_tokens",
          Concat("min_tokens must be less than or equal to max_tokens=", prompt.max_new_tokens,
                 ", got ", request->sampling.min_tokens, ". (parameter=min_tokens)"));
    }
  }
  return std::nullopt;
}

std::optional<HttpError> ReadFields(const nlohmann::json& body, const ServedModel& model,
                                    CompletionRequest* request) {
  JsonFields fields(body);
  request->model = fields.Text("model").value_or("");
  if (request->model.empty()) request->model = model.name;
  if (request->model != model.name) {
    return HttpError{404, "NotFoundError", "model",
                     Concat("The model `", Excerpt(request->model), "` does not exist.")};
  }
  request->request_id = fields.Text("request_id").value_or("");
  if (request->request_id.size() > kMaxRequestIdBytes) {
    return BadField("request_id", Concat("request_id has ", request->request_id.size(),
                                         " bytes, the limit is ", kMaxRequestIdBytes));
  }
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  request->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);

  if (auto error = RefuseUnsupported(fields)) return error;
  fields.Text("user");  // a text without a meaning, as with OpenAI's models
  if (auto error = ReadCacheSalt(fields, request)) return error;
  if (auto error = ReadSampling(fields, model, request)) return error;
  if (auto error = ReadLogprobs(fields, "logprobs", "sample", model, &request->logprobs))
    return error;
  if (auto error =
          ReadLogprobs(fields, "prompt_logprobs", "prompt", model, &request->prompt_logprobs)) {
    return error;
  }
  if (request->echo && !request->prompt_logprobs) request->prompt_logprobs = request->logprobs;
  if (fields.error()) return fields.error();
  if (auto error = ReadPrompts(fields, model, request)) return error;
  if (fields.error()) return fields.error();
  if (request->prompts.size() > static_cast<size_t>(kMaxChoices / request->n)) {
    return BadField("n", Concat("n = ", request->n, " choices of each of ", request->prompts.size(),
                                " prompts: at most ", kMaxChoices, " choices. (parameter=n)"));
  }
  return FitIntoContext(model, request);
}

}  // namespace

std::string RandomRequestId() {
  static constexpr char kHex[] = "0123456789abcdef";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::string id;
  for (int word = 0; word < 2; ++word) {
    uint64_t bits = generator();
    for (int digit = 0; digit < 16; ++digit, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

std::variant<CompletionRequest, HttpError> ParseCompletionRequest(const std::string& body,
                                                                  const ServedModel& model) {
  ParseSlot slot;
  const absl::StatusOr<nlohmann::json> json = ParseJson(body, "body");
  if (!json.ok()) {
    return HttpError{
        400, "Bad Request", "body",
        Concat("1 validation error:\n  ", Excerpt(std::string(json.status().message())))};
  }
  if (!json->is_object()) {
    return HttpError{400, "Bad Request", "body",
                     "1 validation error:\n  the body must be a JSON object"};
  }
  CompletionRequest request;
  if (auto error = ReadFields(*json, model, &request)) return *std::move(error);
  return request;
}

}  // namespace taopd
