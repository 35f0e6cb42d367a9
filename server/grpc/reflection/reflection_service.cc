#include "server/grpc/reflection/reflection_service.h"

#include "server/grpc/calls/message_bytes.h"
#include "server/grpc/reflection/reflection_answer.h"
#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

// Alternately reads a request and writes its answer, one at a time. A request that cannot be parsed
// ends the call. Owns itself.
class ReflectionStream final : public BidiCall {
 public:
  ReflectionStream(const CallServices& services, CallContext* context,
                   const std::vector<std::string>* names)
      : services_(services),
        names_(names),
        client_(AddressOf(services, *context)),
        started_at_(services.state->clock()->Now()) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    grpc::reflection::v1::ServerReflectionRequest request;
    status_ = ParseMessage(&request_, &request);
    if (!status_.ok()) return Finish(ToGrpcStatus(status_));
    answer_ = SerializeMessage(AnswerReflection(request, *names_));
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override {
    services_.metrics->RecordRequest("grpc/Reflection", StatusCodeName(status_),
                                     services_.state->clock()->Now() - started_at_, client_);
    delete this;
  }

 private:
  const CallServices services_;
  const std::vector<std::string>* const names_;
  const std::string client_;
  const absl::Time started_at_;
  absl::Status status_;  // the final status of the call
  CallBytes request_;
  CallBytes answer_;
};

}  // namespace

BidiCall* BeginReflection(const CallServices& services, CallContext* context,
                          const std::vector<std::string>* names) {
  return new ReflectionStream(services, context, names);
}

}  // namespace taopd
