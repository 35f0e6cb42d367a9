#include "server/grpc/reflection/reflection_service.h"

#include "server/grpc/reflection/reflection_answer.h"
#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

namespace v1r = grpc::reflection::v1;
namespace v1alpha = grpc::reflection::v1alpha;

void AnswerTo(const v1r::ServerReflectionRequest& request, const std::vector<std::string>& names,
              v1r::ServerReflectionResponse* response) {
  *response = AnswerReflection(request, names);
}

// The messages of the two versions are the same bytes.
void AnswerTo(const v1alpha::ServerReflectionRequest& request,
              const std::vector<std::string>& names, v1alpha::ServerReflectionResponse* response) {
  v1r::ServerReflectionRequest same;
  same.ParseFromString(request.SerializeAsString());
  response->ParseFromString(AnswerReflection(same, names).SerializeAsString());
}

// Reads a request, writes its answer, and so on: one of each at a time. Owns itself.
template <typename Request, typename Response>
class ReflectionStream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  // The names outlive the call: they are the service's.
  ReflectionStream(const CallServices& services, grpc::CallbackServerContext* context,
                   const std::vector<std::string>* names)
      : services_(services),
        names_(names),
        client_(PeerAddress(context->peer())),
        started_at_(services.state->clock()->Now()),
        status_(CheckKey(services, *context)) {
    if (status_.ok()) {
      this->StartRead(&request_);
    } else {
      this->Finish(ToGrpcStatus(status_));
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    AnswerTo(request_, *names_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    this->StartRead(&request_);
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
  const absl::Status status_;
  Request request_;
  Response response_;
};

}  // namespace

grpc::ServerBidiReactor<v1r::ServerReflectionRequest, v1r::ServerReflectionResponse>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  return new ReflectionStream<v1r::ServerReflectionRequest, v1r::ServerReflectionResponse>(
      services_, context, &names_);
}

grpc::ServerBidiReactor<v1alpha::ServerReflectionRequest, v1alpha::ServerReflectionResponse>*
ReflectionServiceV1Alpha::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  return new ReflectionStream<v1alpha::ServerReflectionRequest, v1alpha::ServerReflectionResponse>(
      services_, context, &names_);
}

}  // namespace taopd
