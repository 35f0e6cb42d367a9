// The common part of calls that need the engine. Such a call owns itself, ends its sequences when
// the client goes, sends a refused client the time after which to try again, and records its end.
// (A ScoreStream, which also reads, does the same in its own way.)
//
// The functions are called in the handler, which returns their result. gRPC runs no reaction before
// the handler has returned.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "server/generation/engine_run.h"
#include "server/grpc/calls/call_services.h"
#include "server/grpc/calls/message_bytes.h"
#include "server/grpc/calls/message_stream.h"

namespace taopd {

struct CallEnvironment {
  CallServices services;
  const char* method;  // its name in the metrics: "grpc/Generate"
};

// An accepted request, ready for the engine.
struct AdmittedRequest {
  std::shared_ptr<const ServedModel> model;
  std::vector<InferenceRequest> requests;  // one per sequence
  // For the engine's arrays and the messages. Hold it until the answer has been sent.
  ByteBudget::Reservation answer_memory;
};

// The objects that a call keeps until gRPC's last reaction.
struct EngineWork {
  // The model stays until then, so that no engine is destroyed by its own thread.
  std::shared_ptr<const ServedModel> model;
  ByteBudget::Reservation answer_memory;
  std::shared_ptr<EngineRun> run;
  std::function<void()> on_done;  // optional

  // Makes the run, whose events come from `delivery`.
  void MakeRun(std::shared_ptr<const ServedModel> served, ByteBudget::Reservation memory,
               EngineEvents events, WorkerPool* delivery) {
    model = std::move(served);
    answer_memory = std::move(memory);
    run = std::make_shared<EngineRun>(model->engine.get(), delivery, std::move(events));
  }
  // Makes the run of a request, and starts it.
  void Start(AdmittedRequest admitted, EngineEvents events, WorkerPool* delivery) {
    MakeRun(std::move(admitted.model), std::move(admitted.answer_memory), std::move(events),
            delivery);
    run->Start(std::move(admitted.requests));
  }
};

// Parses the request, and stores its id as soon as it is known.
template <typename Request>
absl::StatusOr<Request> ReadRequest(const CallBytes* bytes, std::string* request_id) {
  absl::StatusOr<Request> request = ParseRequest<Request>(bytes);
  if (request.ok()) *request_id = request->request_id().substr(0, kMaxRequestIdBytes);
  return request;
}

// A call that streams messages. `start(request, stream, work)` fills `work`, starts its run and
// returns OK, or returns why the call is refused. The run's events send to the stream and end it.
// The request is destroyed after `start` returns.
template <typename Request, typename Message, typename Start>
StreamedCall* BeginStreamedCall(CallContext* context, const CallEnvironment& environment,
                                const CallBytes* bytes, const Start& start) {
  struct Call {
    EngineWork work;
    std::string request_id;
    std::shared_ptr<MessageStream<Message>> stream;
  };
  environment.services.tracker->Begin();
  const absl::Time started_at = environment.services.state->clock()->Now();
  const std::string address = AddressOf(environment.services, *context);
  auto* const call = new Call;  // deleted in the last reaction
  call->stream = std::make_shared<MessageStream<Message>>(
      context,
      [call] {
        if (call->work.run != nullptr) call->work.run->Cancel();
      },
      [call, environment, started_at, address](const absl::Status& status) {
        if (call->work.on_done) call->work.on_done();
        const std::string request_id = std::move(call->request_id);
        delete call;
        RecordCall(environment.services, environment.method, status, started_at, address,
                   request_id);
        environment.services.tracker->End();
      });
  auto* const reactor = call->stream.get();
  const absl::StatusOr<Request> request = ReadRequest<Request>(bytes, &call->request_id);
  absl::Status status = request.status();
  if (status.ok()) status = start(*request, call->stream, &call->work);
  if (!status.ok()) reactor->End(status);
  return reactor;
}

// A call with one answer. `start(request, response, end, work)` is as above, and may move from the
// request. The call keeps the response for the run's events, which fill it and then call `end`
// once. `end` writes the bytes of the response on the thread that calls it.
template <typename Request, typename Response, typename Start>
UnaryCall* BeginUnaryCall(CallContext* context, const CallEnvironment& environment,
                          const CallBytes* bytes, CallBytes* answer, const Start& start) {
  class Call final : public UnaryCall {
   public:
    Call(const CallEnvironment& environment, std::string address)
        : environment_(environment),
          address_(std::move(address)),
          started_at_(environment.services.state->clock()->Now()) {
      environment.services.tracker->Begin();
    }
    void OnCancel() override {
      if (work.run != nullptr) work.run->Cancel();
      order_.CancelEnds();
    }
    void OnDone() override {
      order_.DoneBegins();
      const CallEnvironment environment = environment_;
      if (work.on_done) work.on_done();
      RecordCall(environment.services, environment.method, status, started_at_, address_,
                 request_id);
      delete this;
      environment.services.tracker->End();
    }

    EngineWork work;
    std::string request_id;  // the client's
    Response response;
    absl::Status status;  // written before Finish, read in OnDone

   private:
    const CallEnvironment environment_;
    const std::string address_;
    const absl::Time started_at_;
    ReactionOrder order_;
  };
  auto* const call = new Call(environment, AddressOf(environment.services, *context));
  const auto end = [call, context, answer](const absl::Status& status) {
    call->status = status;
    if (status.ok()) *answer = SerializeMessage(call->response);
    call->response = Response();  // before the answer is sent
    AddRetryPushback(status, context);
    call->Finish(ToGrpcStatus(status));
  };
  absl::StatusOr<Request> request = ReadRequest<Request>(bytes, &call->request_id);
  absl::Status status = request.status();
  if (status.ok()) status = start(*request, &call->response, end, &call->work);
  if (!status.ok()) end(status);
  return call;
}

}  // namespace taopd
