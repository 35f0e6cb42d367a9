#include "server/grpc/vllm/inference_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/grpc/score_conversion.h"
#include "server/grpc/vllm/inference_answer.h"
#include "server/grpc/vllm/inference_request.h"
#include "server/options/version.h"

namespace taopd {

namespace {

// What the events of a call share.
struct Answer {
  Answer(const AdmittedInference& admitted)
      : options(admitted.options),
        prompt_ids(admitted.request.token_ids),
        output(admitted.model->tokenizer.get(), admitted.options, *admitted.request.sampling) {}

  const InferenceAnswerOptions options;
  const std::vector<int32_t> prompt_ids;
  InferenceOutput output;
};

// Starts the run of an admitted request of one sequence.
void StartRunOf(AdmittedInference admitted, const std::shared_ptr<Answer>& answer,
                EngineEvents events, RunRegistry* runs, EngineWork* work) {
  std::vector<InferenceRequest> requests = {admitted.request};
  requests[0].should_stop = [answer](int32_t id) { return answer->output.Push(id); };
  StartRun(std::move(admitted), std::move(requests), std::move(events), runs, work);
}

const ScoreRows* ScoreOf(const InferenceResult& result) {
  return result.score ? &*result.score : nullptr;
}

}  // namespace

grpc::ServerUnaryReactor* VllmInferenceService::Generate(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* answer_bytes) {
  const auto start = [&](const vllm::GenerateRequest& message, vllm::GenerateResponse* response,
                         const auto& end, EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(AdmittedInference admitted,
                           AdmitInference(message, DeadlineOf(*context),
                                          ClientOf(services_, *context), *services_.state));
    const auto answer = std::make_shared<Answer>(admitted);
    EngineEvents events;
    events.on_result = [answer, response](size_t, InferenceResult result) {
      *response->mutable_prompt_info() =
          ToPromptInfo(answer->prompt_ids, answer->options, ScoreOf(result));
      *response->mutable_outputs() = answer->output.Take(*result.generated, /*is_last=*/true);
    };
    events.on_end = end;
    StartRunOf(std::move(admitted), answer, std::move(events), runs_, work);
    return absl::OkStatus();
  };
  return BeginUnaryCall<vllm::GenerateRequest, vllm::GenerateResponse>(
      context, {services_, "grpc/vllm.Inference/Generate"}, request, answer_bytes, start);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmInferenceService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  using Stream = std::shared_ptr<MessageStream<vllm::GenerateResponse>>;
  const auto start = [&](const vllm::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(AdmittedInference admitted,
                           AdmitInference(message, DeadlineOf(*context),
                                          ClientOf(services_, *context), *services_.state));
    const auto answer = std::make_shared<Answer>(admitted);
    const bool token_by_token = !answer->options.prompt_logprobs;
    const auto send_prompt = [answer, stream](const ScoreRows* score) {
      vllm::GenerateResponse message;
      *message.mutable_prompt_info() = ToPromptInfo(answer->prompt_ids, answer->options, score);
      stream->Send(std::move(message));
    };
    const auto send_output = [answer, stream](const GeneratedTokens& so_far, bool is_last) {
      vllm::GenerateResponse message;
      *message.mutable_outputs() = answer->output.Take(so_far, is_last);
      stream->Send(std::move(message));
    };
    EngineEvents events;
    if (token_by_token) {
      events.on_token = [send_prompt, send_output](size_t, const GeneratedTokens& so_far,
                                                   bool is_last) {
        if (so_far.ids.size() == 1) send_prompt(nullptr);
        send_output(so_far, is_last);
      };
    }
    events.on_result = [send_prompt, send_output, token_by_token](size_t, InferenceResult result) {
      if (token_by_token) return;
      send_prompt(ScoreOf(result));
      send_output(*result.generated, /*is_last=*/true);
    };
    events.on_end = [stream](const absl::Status& status) { stream->End(status); };
    StartRunOf(std::move(admitted), answer, std::move(events), runs_, work);
    return absl::OkStatus();
  };
  return BeginStreamedCall<vllm::GenerateRequest, vllm::GenerateResponse>(
      context, {services_, "grpc/vllm.Inference/GenerateStream"}, request, start);
}

VllmControlService::VllmControlService(const CallServices& services, RunRegistry* runs)
    : services_(services), runs_(runs), instance_id_(Concat(FreshBits())) {}

grpc::ServerUnaryReactor* VllmControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer*,
                                                            grpc::ByteBuffer* answer) {
  const auto fill = [&](vllm::ServerInfo* info) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto model, services_.state->Admit());
    const EngineLimits& limits = model->limits;
    info->set_engine_version(kTeacherVersion);
    info->set_api_version("vllm");
    info->set_instance_id(instance_id_);
    vllm::ParallelismInfo* parallelism = info->mutable_parallelism();
    parallelism->set_tensor_parallel_size(static_cast<uint32_t>(model->tensor_parallel_size));
    parallelism->set_pipeline_parallel_size(1);
    parallelism->set_data_parallel_size(1);
    parallelism->set_decode_context_parallel_size(1);
    info->set_max_model_len(static_cast<uint32_t>(limits.max_model_len));
    info->set_kv_block_size(static_cast<uint32_t>(limits.kv_block_tokens));
    info->set_total_kv_blocks(static_cast<uint64_t>(model->engine->stats().num_kv_blocks));
    info->set_max_running_requests(static_cast<uint64_t>(limits.max_num_seqs));
    info->set_max_batched_tokens(static_cast<uint64_t>(limits.max_num_batched_tokens));
    info->mutable_rl_capabilities();
    return absl::OkStatus();
  };
  return AnswerAtOnce<vllm::ServerInfo>(services_, context, "grpc/vllm.Control/GetServerInfo",
                                        answer, fill);
}

grpc::ServerUnaryReactor* VllmControlService::GetModelInfo(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer*,
                                                           grpc::ByteBuffer* answer) {
  const auto fill = [&](vllm::ModelInfo* info) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto model, services_.state->Admit());
    info->set_model_id(model->root);
    info->set_served_model_name(model->name);
    info->set_supports_text_input(model->tokenizer != nullptr);
    info->set_supports_token_ids_input(true);
    return absl::OkStatus();
  };
  return AnswerAtOnce<vllm::ModelInfo>(services_, context, "grpc/vllm.Control/GetModelInfo", answer,
                                       fill);
}

grpc::ServerUnaryReactor* VllmControlService::Abort(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* answer) {
  const auto fill = [&](vllm::AbortResponse*) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto message, ParseRequest<vllm::AbortRequest>(request));
    const std::string client = ClientOf(services_, *context);
    for (const std::string& id : message.request_ids()) runs_->Abort(client, id);
    return absl::OkStatus();
  };
  return AnswerAtOnce<vllm::AbortResponse>(services_, context, "grpc/vllm.Control/Abort", answer,
                                           fill);
}

grpc::ServerUnaryReactor* VllmControlService::IsPaused(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer*,
                                                       grpc::ByteBuffer* answer) {
  const auto never = [](vllm::IsPausedResponse*) { return absl::OkStatus(); };
  return AnswerAtOnce<vllm::IsPausedResponse>(services_, context, "grpc/vllm.Control/IsPaused",
                                              answer, never);
}

grpc::ServerUnaryReactor* VllmControlService::IsSleeping(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer*,
                                                         grpc::ByteBuffer* answer) {
  const auto never = [](vllm::IsSleepingResponse*) { return absl::OkStatus(); };
  return AnswerAtOnce<vllm::IsSleepingResponse>(services_, context, "grpc/vllm.Control/IsSleeping",
                                                answer, never);
}

grpc::ServerUnaryReactor* VllmControlService::GetWeightVersion(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer*,
                                                               grpc::ByteBuffer* answer) {
  const auto fill = [&](vllm::GetWeightVersionResponse* response) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto model, services_.state->Admit());
    response->set_weight_version(model->revision);
    return absl::OkStatus();
  };
  return AnswerAtOnce<vllm::GetWeightVersionResponse>(
      services_, context, "grpc/vllm.Control/GetWeightVersion", answer, fill);
}

}  // namespace taopd
