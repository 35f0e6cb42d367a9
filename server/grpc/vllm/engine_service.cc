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
  EngineAnswer(const AdmittedInference& admitted, const EngineAnswerOptions& answer_options)
      : request(admitted.request), options(answer_options) {
    for (int64_t i = 0; i < request->n; ++i)
      outputs.emplace_back(admitted.model->tokenizer.get(), admitted.options, *request);
  }
  const std::vector<int32_t>& prompt_ids() const { return request->prompts[0].token_ids; }

  const std::shared_ptr<const GenerationRequest> request;
  const EngineAnswerOptions options;
  std::deque<InferenceOutput> outputs;  // one per sequence
};

// Fills in a chunk or the complete answer of a sequence. With prompt log-probs if `with_input`;
// `score` is null if the engine had none to compute.
template <typename Part>
void Fill(Part values, const EngineAnswer& answer, bool with_input, const ScoreRows* score,
          Part* part) {
  *part = std::move(values);
  if (with_input) {
    *part->mutable_input_logprobs() = ToInputLogProbs(answer.prompt_ids(), answer.options, score);
  }
}

void SendComplete(const vllm::SequenceOutput& output, const EngineAnswer& answer, size_t index,
                  bool with_input, const ScoreRows* score, const Stream& stream) {
  engine::GenerateResponse message;
  Fill(ToComplete(output, answer.options, index, answer.prompt_ids().size()), answer, with_input,
       score, message.mutable_complete());
  stream->Send(std::move(message));
}

void SendChunk(const vllm::SequenceOutput& output, const EngineAnswer& answer, size_t index,
               bool with_input, const ScoreRows* score, const Stream& stream) {
  engine::GenerateResponse message;
  Fill(ToChunk(output, answer.options, index, answer.prompt_ids().size()), answer, with_input,
       score, message.mutable_chunk());
  stream->Send(std::move(message));
}

EngineEvents EventsOf(bool streamed, const std::shared_ptr<EngineAnswer>& answer,
                      const Stream& stream) {
  EngineEvents events;
  events.on_end = [stream](const absl::Status& status) { stream->End(status); };
  if (streamed && !answer->options.input_logprobs) {
    events.on_update = [answer, stream](const ChoiceUpdate& update) {
      const size_t index = update.choice;
      const vllm::SequenceOutput output = answer->outputs[index].Take(update);
      SendChunk(output, *answer, index, /*with_input=*/false, nullptr, stream);
      if (update.is_last)
        SendComplete(output, *answer, index, /*with_input=*/false, nullptr, stream);
    };
    return events;
  }
  events.on_result = [answer, stream, streamed](size_t index, const InferenceResult& result) {
    const ScoreRows* score = result.score ? &*result.score : nullptr;
    const vllm::SequenceOutput output = answer->outputs[index].TakeAll(*result.generated);
    if (streamed) SendChunk(output, *answer, index, /*with_input=*/true, score, stream);
    SendComplete(output, *answer, index, !streamed && answer->options.input_logprobs, score,
                 stream);
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
    const auto answer = std::make_shared<EngineAnswer>(admitted, EngineAnswerOptions::Of(params));
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
