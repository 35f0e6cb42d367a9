#include "server/grpc/vllm/engine_service.h"

#include <absl/time/time.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "server/grpc/vllm/engine_conversion.h"
#include "server/grpc/vllm/inference_answer.h"
#include "server/options/version.h"

namespace taopd {
namespace {

namespace engine = vllm::grpc::engine;
using Stream = std::shared_ptr<MessageStream<engine::GenerateResponse>>;

// The state that the events of a call share.
struct EngineAnswer {
  EngineAnswer(const AdmittedInference& admitted, const engine::SamplingParams& sampling)
      : request(admitted.request), params(sampling) {
    for (int64_t i = 0; i < request->n; ++i)
      outputs.emplace_back(admitted.model->tokenizer.get(), admitted.options, *request);
  }
  const std::vector<int32_t>& prompt_ids() const { return request->prompts[0].token_ids; }
  engine::GenerateResponse Chunk(const vllm::SequenceOutput& output, size_t index) const {
    return ToChunk(output, params, index, prompt_ids().size());
  }
  engine::GenerateResponse Complete(const vllm::SequenceOutput& output, size_t index) const {
    return ToComplete(output, params, index, prompt_ids().size());
  }

  const std::shared_ptr<const GenerationRequest> request;
  const engine::SamplingParams params;
  std::deque<InferenceOutput> outputs;  // one per sequence
};

EngineEvents EventsOf(bool streamed, const std::shared_ptr<EngineAnswer>& answer,
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
    if (with_input) input = ToInputLogProbs(answer->prompt_ids(), answer->params, result.score);
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

VllmEngineService::VllmEngineService(const CallServices& services, RunRegistry* runs)
    : services_(services), runs_(runs), started_at_(services.state->clock()->Now()) {}

StreamedCall* VllmEngineService::Generate(CallContext* context, const CallBytes* request) {
  const auto start = [&](const engine::GenerateRequest& message, const Stream& stream,
                         EngineWork* work) -> absl::Status {
    const engine::SamplingParams& params = message.sampling_params();
    TAOPD_ASSIGN_OR_RETURN(const vllm::GenerateRequest inference, ToVllmGenerateRequest(message));
    TAOPD_ASSIGN_OR_RETURN(
        AdmittedInference admitted,
        AdmitInference(inference, DeadlineOf(*context), ClientOf(services_, *context),
                       *services_.state, &params));
    const auto answer = std::make_shared<EngineAnswer>(admitted, params);
    StartRun(std::move(admitted), EventsOf(message.stream(), answer, stream), services_.delivery,
             runs_, work);
    return absl::OkStatus();
  };
  return BeginStreamedCall<engine::GenerateRequest, engine::GenerateResponse>(
      context, {services_, "grpc/vllm.grpc.engine.VllmEngine/Generate"}, request, start);
}

UnaryCall* VllmEngineService::HealthCheck(CallContext* context, const CallBytes*,
                                          CallBytes* answer) {
  return AnswerAtOnce<engine::HealthCheckResponse>(
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
  return AnswerAtOnce<engine::AbortResponse>(
      services_, context, "grpc/vllm.grpc.engine.VllmEngine/Abort", answer,
      [&](auto*) -> absl::Status {
        TAOPD_ASSIGN_OR_RETURN(const auto message, ParseRequest<engine::AbortRequest>(request));
        const std::string client = ClientOf(services_, *context);
        for (const std::string& id : message.request_ids()) runs_->Abort(client, id);
        return absl::OkStatus();
      });
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
