// Every method of every service asks for a key, by the services' own descriptors: a method that is
// added and does not ask fails here.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include "proto/grpc/reflection_v1.pb.h"
#include "proto/grpc/reflection_v1alpha.pb.h"
#include "proto/taopd/v1/teacher.pb.h"
#include "proto/vllm/control.pb.h"
#include "proto/vllm/engine.pb.h"
#include "proto/vllm/inference.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/security/api_keys.h"
#include "tests/server/fake_engine.h"
#include "tests/server/grpc/unary_call.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

class GrpcKeysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    state_.SetReady(fake_.model);
    GrpcServerOptions options;
    options.keys = &keys_;
    options.reflection = true;
    auto server = GrpcServer::Listen("127.0.0.1", 0, &state_, &metrics_, options);
    ASSERT_OK(server);
    server_ = *std::move(server);
    server_->SetHealth(true, true);
    channel_ = grpc::CreateChannel(HostPort("127.0.0.1", server_->port()),
                                   grpc::InsecureChannelCredentials());
  }
  void TearDown() override {
    fake_.engine->Drain(absl::Now());
    if (server_ != nullptr) server_->Shutdown(absl::Now());
  }

  // The status of a call with an empty message.
  grpc::StatusCode Call(const std::string& method, const std::vector<std::string>& authorizations) {
    std::string answer;
    return testing::UnaryCall(channel_, method, "", authorizations, &answer).error_code();
  }

  static std::vector<std::string> Methods() {
    std::vector<std::string> names;
    for (const auto* file :
         {v1::ScoreRequest::descriptor()->file(), vllm::GenerateRequest::descriptor()->file(),
          vllm::AbortRequest::descriptor()->file(),
          vllm::grpc::engine::AbortRequest::descriptor()->file(),
          grpc::reflection::v1::ErrorResponse::descriptor()->file(),
          grpc::reflection::v1alpha::ErrorResponse::descriptor()->file()}) {
      for (int s = 0; s < file->service_count(); ++s) {
        const auto* service = file->service(s);
        for (int m = 0; m < service->method_count(); ++m)
          names.push_back("/" + service->full_name() + "/" + service->method(m)->name());
      }
    }
    return names;
  }

  testing::FakeModel fake_ = testing::MakeFakeModel();
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  ServerMetrics metrics_;
  ApiKeys keys_{{"the-key"}, ""};
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GrpcKeysTest, EveryMethodAsksForAKey) {
  ASSERT_GE(Methods().size(), 20u);
  for (const std::string& method : Methods()) {
    SCOPED_TRACE(method);
    EXPECT_EQ(Call(method, {}), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(Call(method, {"Bearer another"}), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(Call(method, {"Bearer the-key", "Bearer the-key"}),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_NE(Call(method, {"Bearer the-key"}), grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(GrpcKeysTest, ARefusedCallIsCountedOnce) {
  for (const std::string& method : Methods()) Call(method, {});
  // A call is counted after its answer has left: the server ends when all are.
  server_->Shutdown(absl::InfiniteFuture());
  server_.reset();
  const std::string text = metrics_.Text(state_);
  for (const char* method :
       {"grpc/Score", "grpc/ScoreStream", "grpc/Generate", "grpc/GetTeacherInfo",
        "grpc/vllm.Inference/Generate", "grpc/vllm.Control/Abort"}) {
    EXPECT_THAT(text,
                ::testing::HasSubstr(Concat("taopd_teacher_requests_total{code=\"UNAUTHENTICATED"
                                            "\",method=\"",
                                            method, "\"} 1\n")));
  }
}

TEST_F(GrpcKeysTest, ProbesNeedNone) {
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", {}), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace taopd
