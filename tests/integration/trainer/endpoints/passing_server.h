// A server that passes the calls of a trainer on to a real server of rollouts, and that tests make
// misbehave.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "proto/taopd/v1/policy.grpc.pb.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"

namespace taopd::testing {

// A test replaces the functions of the calls that it changes before the first of them. They are
// called on the threads of gRPC.
class PassingServer {
 public:
  // `target` is the real server's host:port. It may start again meanwhile: calls wait for it.
  explicit PassingServer(const std::string& target)
      : channel_(grpc::CreateChannel(target, grpc::InsecureChannelCredentials())),
        policy_(v1::Policy::NewStub(channel_)),
        teacher_(v1::Teacher::NewStub(channel_)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&policy_service_);
    builder.RegisterService(&teacher_service_);
    server_ = builder.BuildAndStart();
  }
  std::string endpoint() const { return Concat("grpc://127.0.0.1:", port_); }

  grpc::Status Pass(const v1::SetWeightsRequest& request, v1::SetWeightsResponse* response) {
    return Pass(*policy_, &v1::Policy::Stub::SetWeights, request, response);
  }
  grpc::Status Pass(const v1::PutWeightsRequest& request, v1::PutWeightsResponse* response) {
    return Pass(*policy_, &v1::Policy::Stub::PutWeights, request, response);
  }
  std::function<grpc::Status(const v1::SetWeightsRequest&, v1::SetWeightsResponse*)> set_weights =
      [this](const auto& request, auto* response) { return Pass(request, response); };
  std::function<grpc::Status(const v1::PutWeightsRequest&, v1::PutWeightsResponse*)> put_weights =
      [this](const auto& request, auto* response) { return Pass(request, response); };
  // Changes a request before it is passed on.
  std::function<void(v1::GenerateRequest*)> change_generate = [](v1::GenerateRequest*) {};

 private:
  template <typename Stub, typename Call, typename Request, typename Response>
  static grpc::Status Pass(Stub& stub, Call call, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    return (stub.*call)(&context, request, response);
  }

  struct PolicyService final : v1::Policy::Service {
    explicit PolicyService(PassingServer* owner) : owner(owner) {}
    grpc::Status GetPolicy(grpc::ServerContext*, const v1::GetPolicyRequest* request,
                           v1::GetPolicyResponse* response) override {
      return Pass(*owner->policy_, &v1::Policy::Stub::GetPolicy, *request, response);
    }
    grpc::Status SetWeights(grpc::ServerContext*, const v1::SetWeightsRequest* request,
                            v1::SetWeightsResponse* response) override {
      return owner->set_weights(*request, response);
    }
    grpc::Status PutWeights(grpc::ServerContext*, const v1::PutWeightsRequest* request,
                            v1::PutWeightsResponse* response) override {
      return owner->put_weights(*request, response);
    }
    PassingServer* const owner;
  };
  struct TeacherService final : v1::Teacher::Service {
    explicit TeacherService(PassingServer* owner) : owner(owner) {}
    grpc::Status GetTeacherInfo(grpc::ServerContext*, const v1::GetTeacherInfoRequest* request,
                                v1::GetTeacherInfoResponse* response) override {
      return Pass(*owner->teacher_, &v1::Teacher::Stub::GetTeacherInfo, *request, response);
    }
    grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                          grpc::ServerWriter<v1::GenerateResponse>* writer) override {
      v1::GenerateRequest changed = *request;
      owner->change_generate(&changed);
      grpc::ClientContext context;
      const auto reader = owner->teacher_->Generate(&context, changed);
      v1::GenerateResponse response;
      while (reader->Read(&response)) writer->Write(response);
      return reader->Finish();
    }
    PassingServer* const owner;
  };

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Policy::Stub> policy_;
  const std::unique_ptr<v1::Teacher::Stub> teacher_;
  PolicyService policy_service_{this};
  TeacherService teacher_service_{this};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace taopd::testing
