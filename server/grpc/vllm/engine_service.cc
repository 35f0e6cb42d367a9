#include "server/grpc/vllm/engine_service.h"

#include <absl/time/time.h>

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "common/engine/sampling/sampling_fields.h"
#include "common/model/config/config_fields.h"
#include "server/grpc/vllm/inference_answer.h"
#include "server/options/version.h"

namespace taopd {
namespace {

namespace engine = vllm::grpc::engine;
using json = nlohmann::ordered_json;
using Stream = std::shared_ptr<MessageStream<engine::GenerateResponse>>;

absl::Status CheckSupported(const engine::GenerateRequest& request) {
  const engine::SamplingParams& sampling = request.sampling_params();
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.has_mm_inputs(), "mm_inputs"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.has_kv_transfer_params(), "kv_transfer_params"));
  TAOPD_RETURN_IF_ERROR(
      RefuseIf(!request.kv_transfer_params_json().empty(), "kv_transfer_params_json"));
  TAOPD_RETURN_IF_ERROR(RefuseIf(request.data_parallel_rank() != 0, "data_parallel_rank"));
  return RefuseIf(sampling.n() > 1 && sampling.has_prompt_logprobs(),
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

std::string ChangedDefaults(const SamplingParams& defaults) {
  const SamplingParams neutral;
  json changed = json::object();
  for (const SamplingField& field : SamplingFields()) {
    const double value = field.get(defaults);
    if (!field.in_generation_config || value == field.get(neutral)) continue;
    changed[field.name] = field.is_integer ? json(static_cast<int64_t>(value)) : json(value);
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

// Returns the request of one sequence in the words of vllm.Inference, for AdmitInference, which
// judges its values and reads the rest of sampling_params itself. Returns INVALID_ARGUMENT, naming
// the field, for what this interface alone can ask for and the server does not have.
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
  response->set_skip_special_tokens(sampling.skip_special_tokens());  // stop strings see the text
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
    ReadString(config, "model_type", info.mutable_model_type()).IgnoreError();
    const auto architectures = config.find("architectures");
    if (architectures != config.end() && architectures->is_array()) {
      for (const json& name : *architectures) {
        if (name.is_string()) info.add_architectures(name.get<std::string>());
      }
    }
    // As in vLLM, these are the ids of config.json, even if generation_config.json names others.
    // Loading the model has checked them.
    const auto ids_of = [&config](const char* key) {
      return ReadTokenIds(config, key).value_or(std::vector<int32_t>());
    };
    for (const int32_t id : ids_of("eos_token_id")) info.add_eos_token_ids(id);
    for (const int32_t id : ids_of("pad_token_id")) info.set_pad_token_id(id);
    for (const int32_t id : ids_of("bos_token_id")) info.set_bos_token_id(id);
  }
  info.set_max_req_input_len(static_cast<int32_t>(model.limits.max_model_len));
  info.set_default_sampling_params_json(ChangedDefaults(model.sampling_defaults));
  return info;
}

// The answer to a request, which the events of its call share. It makes the messages.
struct EngineAnswer {
  EngineAnswer(const AdmittedInference& admitted, const engine::SamplingParams& sampling)
      : request(admitted.request), params(sampling) {
    for (int64_t i = 0; i < request->n; ++i)
      outputs.emplace_back(admitted.model->tokenizer.get(), admitted.options, request);
  }
  const std::vector<int32_t>& prompt_ids() const { return request->prompts[0].token_ids; }

  // Returns the prompt's log-probs; there is no `score` for a prompt of one token.
  engine::InputLogProbs Input(const std::optional<ScoreRows>& score) const {
    engine::InputLogProbs out;
    const bool with_top = params.prompt_logprobs() != 0;
    out.mutable_token_ids()->Add(prompt_ids().begin(), prompt_ids().end());
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

  // Returns a message with a chunk.
  engine::GenerateResponse Chunk(const vllm::SequenceOutput& output, size_t index) const {
    engine::GenerateResponse message;
    engine::GenerateStreamChunk& chunk = *message.mutable_chunk();
    *chunk.mutable_token_ids() = output.token_ids();
    Describe(output, index, &chunk);
    return message;
  }

  // Returns a message with the complete answer. REQUIRES: `output` has the finish_info.
  engine::GenerateResponse Complete(const vllm::SequenceOutput& output, size_t index) const {
    engine::GenerateResponse message;
    engine::GenerateComplete& complete = *message.mutable_complete();
    *complete.mutable_output_ids() = output.token_ids();
    Describe(output, index, &complete);
    const vllm::FinishInfo& finish = output.finish_info();
    complete.set_finish_reason(finish.finish_reason() == vllm::STOP ? "stop" : "length");
    // An end-of-sequence id is not reported, as in vLLM.
    if (finish.stop_reason_case() == vllm::FinishInfo::kStopTokenId)
      complete.set_matched_token_id(finish.stop_token_id());
    if (finish.stop_reason_case() == vllm::FinishInfo::kStopString)
      complete.set_matched_stop_str(finish.stop_string());
    return message;
  }

  // Sets the fields that both kinds of messages have.
  template <typename Part>
  void Describe(const vllm::SequenceOutput& output, size_t index, Part* part) const {
    part->set_index(static_cast<uint32_t>(index));
    part->set_prompt_tokens(static_cast<uint32_t>(prompt_ids().size()));
    part->set_completion_tokens(static_cast<uint32_t>(output.token_ids_size()));
    if (params.has_logprobs()) *part->mutable_output_logprobs() = ToOutputLogProbs(output, params);
  }

  const std::shared_ptr<const GenerationRequest> request;
  const engine::SamplingParams params;
  std::deque<InferenceOutput> outputs;  // one per sequence
};

EngineEvents EventsOfAnswer(bool streamed, const std::shared_ptr<EngineAnswer>& answer,
                            const Stream& stream) {
  EngineEvents events;
  events.on_end = [stream](const absl::Status& status) { stream->End(status); };
  const bool with_input = answer->params.has_prompt_logprobs();
  if (streamed && !with_input) {
    events.on_update = [answer, stream](const ChoiceUpdate& update) {
      const size_t index = update.choice;
      const vllm::SequenceOutput output =
          answer->outputs[index].Take(update.tokens, update.is_last);
      stream->Send(answer->Chunk(output, index));
      if (update.is_last) stream->Send(answer->Complete(output, index));
    };
    return events;
  }
  events.on_result = [=](size_t index, const InferenceResult& result) {
    const vllm::SequenceOutput output = answer->outputs[index].Take(*result.generated);
    engine::InputLogProbs input;
    if (with_input) input = answer->Input(result.score);
    engine::GenerateResponse complete = answer->Complete(output, index);
    if (streamed) {
      engine::GenerateResponse chunk = answer->Chunk(output, index);
      *chunk.mutable_chunk()->mutable_input_logprobs() = std::move(input);
      stream->Send(std::move(chunk));
    } else if (with_input) {
      *complete.mutable_complete()->mutable_input_logprobs() = std::move(input);
    }
    stream->Send(std::move(complete));
  };
  return events;
}

}  // namespace

StreamedCall* VllmEngineService::Generate(CallContext* context, const CallBytes* request) {
  const auto start = [&](const engine::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    const engine::SamplingParams& params = message.sampling_params();
    TAOPD_ASSIGN_OR_RETURN(const vllm::GenerateRequest inference, ToVllmGenerateRequest(message));
    TAOPD_ASSIGN_OR_RETURN(AdmittedInference admitted, AdmitInference(inference, message.stream(),
                                                                      CallerOf(services_, *context),
                                                                      *services_.state, &params));
    const auto answer = std::make_shared<EngineAnswer>(admitted, params);
    StartRun(std::move(admitted), EventsOfAnswer(message.stream(), answer, stream),
             services_.delivery, runs_, work);
    return absl::OkStatus();
  };
  return BeginStreamedCall<engine::GenerateRequest, engine::GenerateResponse>(
      context, {services_, "grpc/vllm.grpc.engine.VllmEngine/Generate"}, request, start);
}

UnaryCall* VllmEngineService::HealthCheck(CallContext* context, const CallBytes*,
                                          CallBytes* answer) {
  return AnswerInHandler<engine::HealthCheckResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/HealthCheck", answer,
      [&](auto* response) {
        const absl::Status ready = services_.state->Ready();
        response->set_healthy(ready.ok());
        response->set_message(std::string(ready.message()));
        return absl::OkStatus();
      });
}

UnaryCall* VllmEngineService::Abort(CallContext* context, const CallBytes* request,
                                    CallBytes* answer) {
  return AbortRuns<engine::AbortRequest, engine::AbortResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/Abort", request, answer, runs_);
}

UnaryCall* VllmEngineService::GetModelInfo(CallContext* context, const CallBytes*,
                                           CallBytes* answer) {
  return DescribeModel<engine::GetModelInfoResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/GetModelInfo", answer,
      [&](const ServedModel& model, auto* response) { *response = ToModelInfo(model); });
}

UnaryCall* VllmEngineService::GetServerInfo(CallContext* context, const CallBytes*,
                                            CallBytes* answer) {
  return DescribeModel<engine::GetServerInfoResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/GetServerInfo", answer,
      [&](const ServedModel& model, auto* response) {
        const EngineStats stats = model.engine->stats();
        response->set_active_requests(static_cast<uint32_t>(stats.num_running + stats.num_waiting));
        response->set_uptime_seconds(
            absl::ToDoubleSeconds(services_.state->clock()->Now() - started_at_));
        response->set_server_type("vllm-grpc");
        response->set_data_parallel_size(1);
      });
}

UnaryCall* VllmEngineService::GetLoads(CallContext* context, const CallBytes*, CallBytes* answer) {
  return DescribeModel<engine::GetLoadsResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/GetLoads", answer,
      [&](const ServedModel& model, auto* response) {
        const EngineStats stats = model.engine->stats();
        const int64_t block = model.limits.kv_block_tokens;
        response->set_timestamp(absl::FormatTime(absl::RFC3339_sec, services_.state->clock()->Now(),
                                                 absl::UTCTimeZone()));
        response->set_version(kTeacherVersion);
        response->set_dp_rank_count(1);
        engine::SchedulerLoad* load = response->add_loads();
        load->set_num_running_reqs(static_cast<int32_t>(stats.num_running));
        load->set_num_waiting_reqs(static_cast<int32_t>(stats.num_waiting));
        load->set_num_total_reqs(static_cast<int32_t>(stats.num_running + stats.num_waiting));
        load->set_num_used_tokens(static_cast<int32_t>(stats.kv_blocks_in_use * block));
        load->set_max_total_num_tokens(static_cast<int32_t>(stats.num_kv_blocks * block));
        load->set_token_usage(stats.num_kv_blocks == 0
                                  ? 0.0
                                  : static_cast<double>(stats.kv_blocks_in_use) /
                                        static_cast<double>(stats.num_kv_blocks));
        load->set_max_running_requests(static_cast<int32_t>(model.limits.max_num_seqs));
      });
}

}  // namespace taopd
