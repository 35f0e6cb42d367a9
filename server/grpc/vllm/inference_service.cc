#include "server/grpc/vllm/inference_service.h"

#include <utility>

#include "server/grpc/vllm/inference_answer.h"
#include "server/grpc/vllm/inference_request.h"
#include "server/options/version.h"

namespace taopd {
namespace {

// Returns the answer that the events of a call share.
std::shared_ptr<InferenceOutput> OutputOf(const AdmittedInference& admitted) {
  return std::make_shared<InferenceOutput>(admitted.model->tokenizer.get(), admitted.options,
                                           admitted.request);
}

}  // namespace

UnaryCall* VllmInferenceService::Generate(CallContext* context, const CallBytes* request,
                                          CallBytes* answer_bytes) {
  const auto start = [&](const vllm::GenerateRequest& message, vllm::GenerateResponse* response,
                         const auto& end, EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(AdmittedInference admitted,
                           AdmitInference(message, /*streams=*/false, CallerOf(services_, *context),
                                          *services_.state));
    const auto output = OutputOf(admitted);
    EngineEvents events;
    events.on_result = [output, response](size_t, const InferenceResult& result) {
      *response->mutable_prompt_info() = output->Prompt(result.score);
      *response->mutable_outputs() = output->Take(*result.generated);
    };
    events.on_end = end;
    StartRun(std::move(admitted), std::move(events), services_.delivery, runs_, work);
    return absl::OkStatus();
  };
  return BeginUnaryCall<vllm::GenerateRequest, vllm::GenerateResponse>(
      context, {services_, "grpc/vllm.Inference/Generate"}, request, answer_bytes, start);
}

StreamedCall* VllmInferenceService::GenerateStream(CallContext* context, const CallBytes* request) {
  using Stream = std::shared_ptr<MessageStream<vllm::GenerateResponse>>;
  const auto start = [&](const vllm::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(
        AdmittedInference admitted,
        AdmitInference(message, /*streams=*/true, CallerOf(services_, *context), *services_.state));
    const auto output = OutputOf(admitted);
    const auto send_prompt = [output, stream](const std::optional<ScoreRows>& score) {
      vllm::GenerateResponse message;
      *message.mutable_prompt_info() = output->Prompt(score);
      stream->Send(std::move(message));
    };
    const auto send_output = [stream](vllm::SequenceOutput piece) {
      vllm::GenerateResponse message;
      *message.mutable_outputs() = std::move(piece);
      stream->Send(std::move(message));
    };
    EngineEvents events;
    if (!admitted.request->prompt_logprobs) {
      events.on_update = [=, is_first = true](const ChoiceUpdate& update) mutable {
        if (std::exchange(is_first, false)) send_prompt(std::nullopt);
        send_output(output->Take(update.tokens, update.is_last));
      };
    } else {
      events.on_result = [=](size_t, const InferenceResult& result) {
        send_prompt(result.score);
        send_output(output->Take(*result.generated));
      };
    }
    events.on_end = [stream](const absl::Status& status) { stream->End(status); };
    StartRun(std::move(admitted), std::move(events), services_.delivery, runs_, work);
    return absl::OkStatus();
  };
  return BeginStreamedCall<vllm::GenerateRequest, vllm::GenerateResponse>(
      context, {services_, "grpc/vllm.Inference/GenerateStream"}, request, start);
}

UnaryCall* VllmControlService::GetServerInfo(CallContext* context, const CallBytes*,
                                             CallBytes* answer) {
  return DescribeModel<vllm::ServerInfo>(
      services_, context, "grpc/vllm.Control/GetServerInfo", answer,
      [&](const ServedModel& model, auto* info) {
        const EngineLimits& limits = model.limits;
        info->set_engine_version(kTeacherVersion);
        info->set_api_version("vllm");
        info->set_instance_id(instance_id_);
        vllm::ParallelismInfo* parallelism = info->mutable_parallelism();
        parallelism->set_tensor_parallel_size(static_cast<uint32_t>(model.tensor_parallel_size));
        parallelism->set_pipeline_parallel_size(1);
        parallelism->set_data_parallel_size(1);
        parallelism->set_decode_context_parallel_size(1);
        info->set_max_model_len(static_cast<uint32_t>(limits.max_model_len));
        info->set_kv_block_size(static_cast<uint32_t>(limits.kv_block_tokens));
        info->set_total_kv_blocks(static_cast<uint64_t>(model.engine->stats().num_kv_blocks));
        info->set_max_running_requests(static_cast<uint64_t>(limits.max_num_seqs));
        info->set_max_batched_tokens(static_cast<uint64_t>(limits.max_num_batched_tokens));
        info->mutable_rl_capabilities();
      });
}

UnaryCall* VllmControlService::GetModelInfo(CallContext* context, const CallBytes*,
                                            CallBytes* answer) {
  return DescribeModel<vllm::ModelInfo>(services_, context, "grpc/vllm.Control/GetModelInfo",
                                        answer, [&](const ServedModel& model, auto* info) {
                                          info->set_model_id(model.root);
                                          info->set_served_model_name(model.name);
                                          info->set_supports_text_input(model.tokenizer != nullptr);
                                          info->set_supports_token_ids_input(true);
                                        });
}

UnaryCall* VllmControlService::Abort(CallContext* context, const CallBytes* request,
                                     CallBytes* answer) {
  return AbortRuns<vllm::AbortRequest, vllm::AbortResponse>(
      services_, context, "grpc/vllm.Control/Abort", request, answer, runs_);
}

UnaryCall* VllmControlService::IsPaused(CallContext* context, const CallBytes*, CallBytes* answer) {
  return AnswerInHandler<vllm::IsPausedResponse>(services_, context, "grpc/vllm.Control/IsPaused",
                                                 answer, [](auto*) { return absl::OkStatus(); });
}

UnaryCall* VllmControlService::IsSleeping(CallContext* context, const CallBytes*,
                                          CallBytes* answer) {
  return AnswerInHandler<vllm::IsSleepingResponse>(services_, context,
                                                   "grpc/vllm.Control/IsSleeping", answer,
                                                   [](auto*) { return absl::OkStatus(); });
}

UnaryCall* VllmControlService::GetWeightVersion(CallContext* context, const CallBytes*,
                                                CallBytes* answer) {
  return DescribeModel<vllm::GetWeightVersionResponse>(
      services_, context, "grpc/vllm.Control/GetWeightVersion", answer,
      [&](const ServedModel& model, auto* response) {
        response->set_weight_version(model.revision);
      });
}

}  // namespace taopd
