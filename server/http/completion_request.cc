#include "server/http/completion_request.h"

#include <absl/synchronization/mutex.h>
#include <algorithm>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "common/io/jsonl.h"
#include "common/wire/teacher_protocol.h"
#include "server/http/json_fields.h"

namespace taopd {
namespace {

constexpr size_t kMaxPrompts = 1024;  // vLLM's VLLM_MAX_COMPLETION_PROMPTS
constexpr int kMaxParallelParses = 2;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

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
  for (const char* name :
       {"min_p", "presence_penalty", "frequency_penalty", "min_tokens", "priority"}) {
    if (fields.Number(name).value_or(0.0) != 0.0) return refuse(name);
  }
  for (const char* name : {"repetition_penalty", "n", "best_of"}) {
    if (fields.Number(name).value_or(1.0) != 1.0) return refuse(name);
  }
  for (const char* name : {"stream", "use_beam_search", "include_stop_str_in_output"}) {
    if (fields.Bool(name).value_or(false)) return refuse(name);
  }
  if (!fields.Bool("spaces_between_special_tokens").value_or(true))
    return refuse("spaces_between_special_tokens");
  for (const char* name :
       {"prompt_embeds", "logit_bias", "allowed_token_ids", "bad_words", "stop",
        "logprob_token_ids", "truncate_prompt_tokens", "response_format", "structured_outputs",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "kv_transfer_params",
        "ec_transfer_params", "repetition_detection", "thinking_token_budget",
        "return_token_offsets", "routed_experts_prompt_start"}) {
    const nlohmann::json* value = fields.Find(name);
    const bool empty = value == nullptr || (value->is_structured() && value->empty()) ||
                       (value->is_string() && value->get_ref<const std::string&>().empty());
    if (!empty) return refuse(name);
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
    return BadField(
        name, Concat("`", name, "` must be an integer. (parameter=", name, ", value=",
                     value->is_string() ? value->get<std::string>() : value->type_name(), ")"));
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

std::optional<HttpError> ReadSampling(JsonFields& fields, const ServedModel& model,
                                      CompletionRequest* request) {
  request->temperature = fields.Number("temperature").value_or(1.0);
  if (!(request->temperature >= 0.0 && request->temperature <= 2.0)) {
    return BadField("temperature",
                    Concat("temperature must be between 0 and 2, got ", request->temperature,
                           ". (parameter=temperature, value=", request->temperature, ")"));
  }
  request->top_p = fields.Number("top_p").value_or(1.0);
  if (!(request->top_p > 0.0 && request->top_p <= 1.0)) {
    return BadField("top_p", Concat("top_p must be in (0, 1], got ", request->top_p,
                                    ". (parameter=top_p, value=", request->top_p, ")"));
  }
  const int64_t top_k = fields.Integer("top_k", -1, kMaxInt32).value_or(0);
  request->top_k = top_k == -1 ? 0 : static_cast<int32_t>(top_k);
  request->ignore_eos = fields.Bool("ignore_eos").value_or(false);
  for (const int64_t id : fields.Integers("stop_token_ids")) {
    if (id < 0 || id >= model.limits.vocab_size) {
      return BadField("stop_token_ids",
                      Concat("stop_token_ids holds ", id, ", which is not in [0, ",
                             model.limits.vocab_size, "). (parameter=stop_token_ids)"));
    }
    request->stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  request->seed = fields.Integer("seed");
  if (request->seed == -1) request->seed.reset();  // vLLM: none

  request->echo = fields.Bool("echo").value_or(false);
  request->max_tokens = fields.Integer("max_tokens").value_or(16);
  if (request->max_tokens < 1 && !(request->max_tokens == 0 && request->echo)) {
    return BadField("max_tokens",
                    Concat("max_tokens must be at least 1, got ", request->max_tokens,
                           ". (parameter=max_tokens, value=", request->max_tokens, ")"));
  }
  return std::nullopt;
}

std::optional<HttpError> CheckLengths(const ServedModel& model, const CompletionRequest& request) {
  // Only requests that generate use the KV cache.
  const int64_t limit = request.NumNewTokens() > 0
                            ? std::min(model.limits.max_model_len, model.limits.max_generation_len)
                            : model.limits.max_model_len;
  for (const CompletionPrompt& prompt : request.prompts) {
    const int64_t num_input = static_cast<int64_t>(prompt.token_ids.size());
    if (num_input <= limit && request.max_tokens <= limit - num_input) {
      if (num_input + request.NumNewTokens() <= limit) continue;
      return BadRequest(
          Concat("The decoder prompt (length ", num_input,
                 ") plus the number of requested output tokens (at least 1) is longer than the "
                 "maximum model length of ",
                 limit, "."));
    }
    return BadField(
        "input_tokens",
        Concat("This model's maximum context length is ", limit, " tokens. However, you requested ",
               request.max_tokens, " output tokens and your prompt contains ", num_input,
               " input tokens, for a total of ",
               // Both fit in 63 bits, their sum may not.
               static_cast<uint64_t>(request.max_tokens) + static_cast<uint64_t>(num_input),
               " tokens. Please reduce the length of the input prompt or the number of requested "
               "output tokens. "
               "(parameter=input_tokens, value=",
               num_input, ")"));
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
                     Concat("The model `", request->model, "` does not exist.")};
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
  return CheckLengths(model, *request);
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
    return HttpError{400, "Bad Request", "body",
                     Concat("1 validation error:\n  ", std::string(json.status().message()))};
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
