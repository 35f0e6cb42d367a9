#include "server/grpc/vllm/engine_conversion.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/engine/sampling/sampling_fields.h"

namespace taopd {
namespace {

namespace engine = vllm::grpc::engine;
using nlohmann::json;

absl::Status CheckSupported(const engine::GenerateRequest& request) {
  const auto refuse = [](bool is_set, const char* name) {
    return is_set ? InvalidArgument(name, " is not supported") : absl::OkStatus();
  };
  const engine::SamplingParams& sampling = request.sampling_params();
  TAOPD_RETURN_IF_ERROR(refuse(request.has_mm_inputs(), "mm_inputs"));
  TAOPD_RETURN_IF_ERROR(refuse(request.has_kv_transfer_params(), "kv_transfer_params"));
  TAOPD_RETURN_IF_ERROR(
      refuse(!request.kv_transfer_params_json().empty(), "kv_transfer_params_json"));
  TAOPD_RETURN_IF_ERROR(refuse(request.data_parallel_rank() != 0, "data_parallel_rank"));
  return refuse(sampling.n() > 1 && sampling.has_prompt_logprobs(),
                "prompt_logprobs with more than one sequence");
}

absl::Status SetCandidates(const char* field, int32_t k, vllm::CandidateTokens* candidates) {
  if (k < -1) return InvalidArgument(field, " is ", k, ": must be at least -1");
  if (k == -1) {
    candidates->set_all(true);
  } else {
    candidates->set_top_n(static_cast<uint32_t>(k));
  }
  return absl::OkStatus();
}

absl::Status SetDecoding(const engine::SamplingParams& sampling, vllm::GenerateRequest* out) {
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id < 0) return InvalidArgument("logit_bias has the id ", id, ": must not be negative");
    (*out->mutable_decoding()->mutable_logit_bias())[static_cast<uint32_t>(id)] = bias;
  }
  vllm::StoppingCriteria* stopping = out->mutable_stopping();
  if (sampling.has_max_tokens() && sampling.max_tokens() == 0)
    return InvalidArgument("max_tokens must be at least 1, got 0");
  stopping->set_max_new_tokens(sampling.max_tokens());
  stopping->set_min_new_tokens(sampling.min_tokens());
  *stopping->mutable_stop_token_ids() = sampling.stop_token_ids();
  *stopping->mutable_stop_strings() = sampling.stop();
  stopping->set_ignore_eos(sampling.ignore_eos());
  return absl::OkStatus();
}

// One of config.json's numbers, or a list of them.
std::vector<int32_t> IdsOf(const json& config, const char* key) {
  std::vector<int32_t> ids;
  const auto found = config.find(key);
  if (found == config.end()) return ids;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string ChangedDefaults(const SamplingParams& defaults) {
  const SamplingParams neutral;
  nlohmann::ordered_json changed = nlohmann::ordered_json::object();
  for (const SamplingField& field : SamplingFields()) {
    const double value = field.get(defaults);
    if (!field.in_generation_config || value == field.get(neutral)) continue;
    changed[field.name] = field.is_integer ? nlohmann::ordered_json(static_cast<int64_t>(value))
                                           : nlohmann::ordered_json(value);
  }
  return changed.empty() ? "" : changed.dump();
}

engine::OutputLogProbs ToOutputLogProbs(const vllm::SequenceOutput& output,
                                        const engine::SamplingParams& params) {
  engine::OutputLogProbs out;
  *out.mutable_token_logprobs() = output.logprobs();
  *out.mutable_token_ids() = output.token_ids();
  if (params.logprobs() == 0) return out;
  for (const vllm::CandidateTokenInfo& candidates : output.candidate_tokens()) {
    engine::TopLogProbs* top = out.add_top_logprobs();
    for (const vllm::TokenInfo& token : candidates.tokens()) {
      top->add_token_ids(token.id());
      top->add_values(token.logprob());
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<vllm::GenerateRequest> ToVllmGenerateRequest(
    const engine::GenerateRequest& request) {
  TAOPD_RETURN_IF_ERROR(CheckSupported(request));
  const engine::SamplingParams& sampling = request.sampling_params();
  vllm::GenerateRequest out;
  out.set_request_id(request.request_id());
  switch (request.input_case()) {
    case engine::GenerateRequest::kTokenized:
      *out.mutable_token_ids()->mutable_ids() = request.tokenized().input_ids();
      break;
    case engine::GenerateRequest::kText:
      out.set_text(request.text());
      break;
    default:
      return InvalidArgument("input is required: tokenized or text");
  }
  out.set_temperature(sampling.has_temperature() ? sampling.temperature() : 1.0f);
  if (sampling.has_seed()) out.mutable_sampling()->set_seed(sampling.seed());
  TAOPD_RETURN_IF_ERROR(SetDecoding(sampling, &out));
  vllm::ResponseOptions* response = out.mutable_response();
  response->set_output_text(false);
  response->set_output_token_ids(true);
  if (sampling.has_logprobs()) {
    response->set_output_logprobs(true);
    TAOPD_RETURN_IF_ERROR(
        SetCandidates("logprobs", sampling.logprobs(), response->mutable_output_candidates()));
  }
  if (sampling.has_prompt_logprobs()) {
    response->set_prompt_logprobs(true);
    TAOPD_RETURN_IF_ERROR(SetCandidates("prompt_logprobs", sampling.prompt_logprobs(),
                                        response->mutable_prompt_candidates()));
  }
  return out;
}

engine::InputLogProbs ToInputLogProbs(const std::vector<int32_t>& token_ids,
                                      const engine::SamplingParams& params,
                                      const std::optional<ScoreRows>& score) {
  engine::InputLogProbs out;
  const bool with_top = params.prompt_logprobs() != 0;
  out.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
  out.add_token_logprobs();
  if (with_top) out.add_top_logprobs();
  if (!score) return out;
  const size_t k = static_cast<size_t>(score->top_k);
  for (size_t r = 0; r < static_cast<size_t>(score->num_rows); ++r) {
    out.add_token_logprobs()->set_value(score->sampled_log_probs[r]);
    if (!with_top) continue;
    engine::TopLogProbs* top = out.add_top_logprobs();
    const auto ids = score->ids.begin() + static_cast<ptrdiff_t>(r * k);
    const auto values = score->log_probs.begin() + static_cast<ptrdiff_t>(r * k);
    top->mutable_token_ids()->Add(ids, ids + static_cast<ptrdiff_t>(k));
    top->mutable_values()->Add(values, values + static_cast<ptrdiff_t>(k));
  }
  return out;
}

engine::GenerateResponse ToChunk(const vllm::SequenceOutput& output,
                                 const engine::SamplingParams& params, size_t index,
                                 size_t num_prompt_tokens) {
  engine::GenerateResponse message;
  engine::GenerateStreamChunk& chunk = *message.mutable_chunk();
  *chunk.mutable_token_ids() = output.token_ids();
  chunk.set_prompt_tokens(static_cast<uint32_t>(num_prompt_tokens));
  chunk.set_completion_tokens(static_cast<uint32_t>(output.token_ids_size()));
  if (params.has_logprobs()) *chunk.mutable_output_logprobs() = ToOutputLogProbs(output, params);
  chunk.set_index(static_cast<uint32_t>(index));
  return message;
}

engine::GenerateResponse ToComplete(const vllm::SequenceOutput& output,
                                    const engine::SamplingParams& params, size_t index,
                                    size_t num_prompt_tokens) {
  engine::GenerateResponse message;
  engine::GenerateComplete& complete = *message.mutable_complete();
  *complete.mutable_output_ids() = output.token_ids();
  const vllm::FinishInfo& finish = output.finish_info();
  complete.set_finish_reason(finish.finish_reason() == vllm::STOP ? "stop" : "length");
  complete.set_prompt_tokens(static_cast<uint32_t>(num_prompt_tokens));
  complete.set_completion_tokens(static_cast<uint32_t>(output.token_ids_size()));
  if (params.has_logprobs()) *complete.mutable_output_logprobs() = ToOutputLogProbs(output, params);
  complete.set_index(static_cast<uint32_t>(index));
  // An end-of-sequence id is not reported, as in vLLM.
  if (finish.stop_reason_case() == vllm::FinishInfo::kStopTokenId)
    complete.set_matched_token_id(finish.stop_token_id());
  if (finish.stop_reason_case() == vllm::FinishInfo::kStopString)
    complete.set_matched_stop_str(finish.stop_string());
  return message;
}

engine::GetModelInfoResponse ToModelInfo(const ServedModel& model) {
  engine::GetModelInfoResponse info;
  info.set_model_path(model.root);
  info.set_is_generation(true);
  info.set_max_context_length(static_cast<uint32_t>(model.limits.max_model_len));
  info.set_vocab_size(static_cast<uint32_t>(model.limits.vocab_size));
  info.set_served_model_name(model.name);
  if (model.tokenizer != nullptr) info.set_tokenizer_path(model.root);
  const json config = json::parse(model.model_config_json, nullptr, /*allow_exceptions=*/false);
  if (config.is_object()) {
    const auto type = config.find("model_type");
    if (type != config.end() && type->is_string()) info.set_model_type(type->get<std::string>());
    const auto architectures = config.find("architectures");
    if (architectures != config.end() && architectures->is_array()) {
      for (const json& name : *architectures) {
        if (name.is_string()) info.add_architectures(name.get<std::string>());
      }
    }
    for (const int32_t id : IdsOf(config, "eos_token_id")) info.add_eos_token_ids(id);
    const auto first = [&config](const char* key) {
      const std::vector<int32_t> ids = IdsOf(config, key);
      return ids.empty() ? 0 : ids[0];
    };
    info.set_pad_token_id(first("pad_token_id"));
    info.set_bos_token_id(first("bos_token_id"));
  }
  info.set_max_req_input_len(static_cast<int32_t>(model.limits.max_model_len));
  info.set_default_sampling_params_json(ChangedDefaults(model.sampling_defaults));
  return info;
}

}  // namespace taopd
