#include "trainer/rollout/vllm/vllm_messages.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/io/jsonl.h"
#include "common/wire/vllm_log_prob.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

using Json = nlohmann::json;

absl::Status BadVllmReply(const std::string& what) { return DataLoss("vLLM's reply: ", what); }

absl::StatusOr<Json> ParseVllmReply(const std::string& body) {
  auto reply = ParseJson(body, "vLLM's reply");
  if (!reply.ok()) return DataLoss(reply.status().message());
  if (!reply->is_object()) return BadVllmReply("not a JSON object");
  return reply;
}

// Returns the value at a path of keys, or null if there is none.
const Json& At(const Json& value, std::initializer_list<const char*> path) {
  static const Json kNothing;
  const Json* at = &value;
  for (const char* key : path) {
    if (!at->is_object()) return kNothing;
    const auto found = at->find(key);
    if (found == at->end()) return kNothing;
    at = &*found;
  }
  return *at;
}

std::string TextOr(const Json& value, const std::string& other) {
  return value.is_string() ? value.get<std::string>() : other;
}

absl::StatusOr<int32_t> ParseId(const Json& value, int64_t vocab_size) {
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
  if (id >= 0 && id < vocab_size) return static_cast<int32_t>(id);
  return BadVllmReply(Concat("a token id is not an integer in [0, ", vocab_size, ")"));
}

absl::StatusOr<float> ParseLogProb(const Json& value, const char* name) {
  const double log_prob =
      value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  // A token of probability zero is never sampled.
  if (log_prob > kVllmLogOfZero && log_prob <= kLogProbSlack) return static_cast<float>(log_prob);
  return BadVllmReply(Concat(name, " has a logprob that is not a number in (", kVllmLogOfZero,
                             ", 0]: ", value.dump()));
}

// Takes the ids of the k most probable tokens of a position from its list, in which the sampled
// token comes first and may be one of them.
absl::Status AppendTopIds(const Json& entry, int64_t k, int64_t vocab_size,
                          std::vector<int32_t>* top_ids) {
  const Json& list = At(entry, {"top_logprobs"});
  if (!list.is_array() || static_cast<int64_t>(list.size()) < k) {
    return BadVllmReply(Concat("top_logprobs does not have ", k, " entries"));
  }
  struct Ranked {
    double log_prob;
    int32_t id;
  };
  std::vector<Ranked> ranked;
  for (const Json& each : list) {
    TAOPD_ASSIGN_OR_RETURN(const int32_t id, ParseId(At(each, {"token_id"}), vocab_size));
    const Json& log_prob = At(each, {"logprob"});
    if (!log_prob.is_number()) return BadVllmReply("top_logprobs has an entry without a logprob");
    ranked.push_back({log_prob.get<double>(), id});
  }
  std::ranges::sort(ranked, [](const Ranked& a, const Ranked& b) {
    return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.id < b.id;
  });
  for (int64_t j = 0; j < k; ++j) top_ids->push_back(ranked[j].id);
  return absl::OkStatus();
}

// Fills in the version, if one version generated all `num_tokens` tokens.
absl::Status ParseVersion(const Json& choice, int64_t num_tokens, std::string* version) {
  const Json& spans = At(choice, {"weight_versions"});
  if (!spans.is_array() || spans.empty()) {
    return BadVllmReply("no weight_versions; vLLM 0.32 or newer stamps its answers with them");
  }
  if (spans.size() > 1)
    return absl::AbortedError("a response was generated with two versions of the weights");
  *version = TextOr(At(spans[0], {"version"}), "");
  const Json &start = At(spans[0], {"start"}), &end = At(spans[0], {"end"});
  if (version->empty() || start != 0 || end != num_tokens) {
    return BadVllmReply("weight_versions does not name the weights of all tokens");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VllmServerInfo> ParseVllmServerInfo(const std::string& body) {
  TAOPD_ASSIGN_OR_RETURN(const Json reply, ParseVllmReply(body));
  const Json& config = At(reply, {"vllm_config"});
  const Json& model = At(config, {"model_config"});
  const Json &max_logprobs = At(model, {"max_logprobs"}), &length = At(model, {"max_model_len"});
  VllmServerInfo info;
  info.logprobs_mode = TextOr(At(model, {"logprobs_mode"}), "");
  info.dtype = TextOr(At(model, {"dtype"}), "");
  if (info.dtype.starts_with("torch.")) info.dtype = info.dtype.substr(6);
  if (info.logprobs_mode.empty() || info.dtype.empty() || !max_logprobs.is_number_integer() ||
      !length.is_number_integer()) {
    return BadVllmReply(
        "model_config does not tell logprobs_mode, dtype, max_logprobs and max_model_len");
  }
  info.max_logprobs = max_logprobs.get<int64_t>();
  info.max_model_len = length.get<int64_t>();
  info.load_format = TextOr(At(config, {"load_config", "load_format"}), "auto");
  info.is_on_cpu = TextOr(At(config, {"device_config", "device"}), "") == "cpu";
  info.unties_head = At(model, {"hf_overrides", "tie_word_embeddings"}) == false;
  return info;
}

absl::Status CheckVllmServesRollouts(const VllmServerInfo& info, const RolloutNeeds& needs) {
  const SamplingParams& sampling = needs.sampling;
  if (needs.has_adapters) {
    return InvalidArgument(
        "student.lora: vLLM reloads whole models, not adapters; generate in the trainer's process "
        "or on taopd-teacher --trainable");
  }
  if (info.max_model_len < needs.max_model_len) {
    return InvalidArgument("--max-model-len ", info.max_model_len, " is below the longest prompt ",
                           "plus the longest response, ", needs.max_model_len);
  }
  if (info.max_logprobs >= 0 && info.max_logprobs < needs.sampling.num_log_probs) {
    return InvalidArgument("--max-logprobs ", info.max_logprobs, " is below the student's top ",
                           needs.sampling.num_log_probs, " tokens (objective.support)");
  }
  const bool is_raw = info.logprobs_mode == "raw_logprobs";
  if (!is_raw && info.logprobs_mode != "processed_logprobs") {
    return InvalidArgument("--logprobs-mode ", info.logprobs_mode,
                           " reports no log-probs; use raw_logprobs or processed_logprobs");
  }
  if (is_raw && sampling.temperature != 1.0f) {
    return InvalidArgument("rollout.temperature = ", absl::StrCat(sampling.temperature),
                           ": --logprobs-mode raw_logprobs reports log-probs at temperature 1 "
                           "alone; use processed_logprobs");
  }
  if (!is_raw && (sampling.top_p < 1.0f || sampling.top_k > 0)) {
    return InvalidArgument(
        sampling.top_p < 1.0f ? absl::StrCat("rollout.top_p = ", sampling.top_p)
                              : absl::StrCat("rollout.top_k = ", sampling.top_k),
        ": --logprobs-mode processed_logprobs reports log-probs after truncation, and the loss "
        "needs those before it; use raw_logprobs with rollout.temperature = 1, or no truncation");
  }
  if (needs.has_tied_head && info.is_on_cpu && !info.unties_head) {
    return InvalidArgument(
        "the student's head is tied to its embedding, and vLLM on a CPU keeps a packed head that "
        "does not follow new weights; start it with --load-format dummy --hf-overrides "
        "'{\"tie_word_embeddings\": false}'");
  }
  return absl::OkStatus();
}

double VllmProbeTolerance(const std::string& our_dtype, const std::string& server_dtype) {
  return our_dtype == "float32" && server_dtype == "float32" ? 1e-3 : 0.1;
}

std::string VllmGenerateBody(const RolloutRequest& request, const RolloutNeeds& needs,
                             const std::string& model) {
  const SamplingParams& sampling = request.sampling;
  return Json{{"model", model},
              {"token_ids", request.prompt_ids},
              {"sampling_params",
               {{"max_tokens", sampling.max_new_tokens},
                {"temperature", sampling.temperature},
                {"top_p", sampling.top_p},
                {"top_k", sampling.top_k},
                {"seed", sampling.seed & std::numeric_limits<int64_t>::max()},
                {"logprobs", sampling.num_log_probs},
                // The student's own ids end a sequence, whatever the server's tokenizer says.
                {"ignore_eos", true},
                {"stop_token_ids", needs.eos_token_ids},
                {"detokenize", false}}}}
      .dump();
}

absl::StatusOr<WorkerRollout> ParseVllmRollout(const std::string& body,
                                               const RolloutRequest& request,
                                               const RolloutNeeds& needs) {
  TAOPD_ASSIGN_OR_RETURN(const Json reply, ParseVllmReply(body));
  const Json& choices = At(reply, {"choices"});
  if (!choices.is_array() || choices.size() != 1) {
    return BadVllmReply("choices is not a list of one choice");
  }
  const Json& choice = choices[0];
  const std::string finish = TextOr(At(choice, {"finish_reason"}), "");
  if (finish == "abort") return absl::AbortedError("vLLM has dropped the sequence");
  if (finish != "stop" && finish != "length") {
    return BadVllmReply(Concat("the finish_reason is \"", finish.substr(0, 40), "\""));
  }
  WorkerRollout rollout;
  rollout.finish = finish == "stop" ? FinishReason::kStop : FinishReason::kLength;
  const Json& ids = At(choice, {"token_ids"});
  const Json& content = At(choice, {"logprobs", "content"});
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (!ids.is_array() || ids.empty() || num_tokens > request.sampling.max_new_tokens) {
    return BadVllmReply(
        Concat("token_ids is not a list of 1 to ", request.sampling.max_new_tokens, " ids"));
  }
  if (rollout.finish == FinishReason::kLength && num_tokens < request.sampling.max_new_tokens) {
    return BadVllmReply(Concat("finish_reason length after ", num_tokens, " of ",
                               request.sampling.max_new_tokens, " tokens"));
  }
  if (!content.is_array() || content.size() != ids.size()) {
    return BadVllmReply("logprobs.content does not have one entry for each token");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    TAOPD_ASSIGN_OR_RETURN(const int32_t id, ParseId(ids[i], needs.vocab_size));
    if (At(content[i], {"token_id"}) != id) {
      return BadVllmReply(Concat("logprobs.content has another token than token_ids at ", i));
    }
    TAOPD_ASSIGN_OR_RETURN(const float log_prob,
                           ParseLogProb(At(content[i], {"logprob"}), "logprobs.content"));
    rollout.response_ids.push_back(id);
    rollout.behavior_log_probs.push_back(log_prob);
    TAOPD_RETURN_IF_ERROR(AppendTopIds(content[i], request.sampling.num_log_probs, needs.vocab_size,
                                       &rollout.top_ids));
  }
  const std::vector<int32_t>& eos_ids = needs.eos_token_ids;
  if (rollout.finish == FinishReason::kStop &&
      std::ranges::find(eos_ids, rollout.response_ids.back()) == eos_ids.end()) {
    return BadVllmReply(Concat("finish_reason stop after the token ", rollout.response_ids.back(),
                               ", which ends no sequence of the student"));
  }
  TAOPD_RETURN_IF_ERROR(ParseVersion(choice, num_tokens, &rollout.version));
  return rollout;
}

std::string VllmProbeBody(const std::vector<int32_t>& token_ids, const std::string& model) {
  return Json{
      {"model", model},
      {"token_ids", token_ids},
      {"sampling_params",
       {{"max_tokens", 1}, {"temperature", 0}, {"prompt_logprobs", 0}, {"detokenize", false}}}}
      .dump();
}

absl::StatusOr<std::vector<float>> ParseVllmProbe(const std::string& body,
                                                  const std::vector<int32_t>& token_ids) {
  TAOPD_ASSIGN_OR_RETURN(const Json reply, ParseVllmReply(body));
  const Json& positions = At(reply, {"prompt_logprobs"});
  if (!positions.is_array() || positions.size() != token_ids.size()) {
    return BadVllmReply("prompt_logprobs does not have one entry for each token of the probe");
  }
  std::vector<float> log_probs;
  for (size_t i = 1; i < token_ids.size(); ++i) {
    const std::string id = std::to_string(token_ids[i]);
    TAOPD_ASSIGN_OR_RETURN(
        log_probs.emplace_back(),
        ParseLogProb(At(positions[i], {id.c_str(), "logprob"}), "prompt_logprobs"));
  }
  return log_probs;
}

std::string VllmReloadBody(const std::string& directory) {
  return Json{{"method", "reload_weights"}, {"kwargs", {{"weights_path", directory}}}}.dump();
}

std::string VllmLoadFormatBody() {
  const Json overrides = {{"load_config", {{"load_format", "auto"}}}};
  return Json{{"method", "update_config"}, {"kwargs", {{"overrides", overrides}}}}.dump();
}

absl::StatusOr<std::string> ParseVllmText(const std::string& body, const std::string& key) {
  TAOPD_ASSIGN_OR_RETURN(const Json reply, ParseVllmReply(body));
  const Json& value = At(reply, {key.c_str()});
  if (!value.is_string()) return BadVllmReply(Concat("no text ", key));
  return value.get<std::string>();
}

}  // namespace taopd
