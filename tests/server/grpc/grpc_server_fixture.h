// The gRPC server with real sockets on 127.0.0.1 and an engine that can hold work back.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/net/listener.h"
#include "tests/server/fake_engine.h"
#include "tests/server/grpc/grpc_status.h"
#include "tests/server/grpc/score_requests.h"
#include "tests/server/grpc/unary_call.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

// Reads a stream of messages to its end. Expects none if the call fails.
template <typename Message>
absl::StatusOr<std::vector<Message>> ReadAll(std::unique_ptr<grpc::ClientReader<Message>> reader) {
  std::vector<Message> messages;
  for (Message message; reader->Read(&message);) messages.push_back(message);
  const absl::Status status = StatusOf(reader->Finish());
  if (status.ok()) return messages;
  EXPECT_TRUE(messages.empty()) << status;
  return status;
}

class GrpcServerFixture : public ::testing::Test {
 protected:
  void SetUp() override { Listen({}); }
  // A test with other options overrides SetUp and calls this.
  void Listen(const GrpcServerOptions& options) {
    auto server = GrpcServer::Listen("127.0.0.1", 0, &state_, &metrics_, options);
    ASSERT_OK(server);
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    channel_ = grpc::CreateCustomChannel(HostPort("127.0.0.1", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Teacher::NewStub(channel_);
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    fake_.engine->Drain(absl::Now());
    server_->Shutdown(absl::Now());
  }

  void Ready() { state_.SetReady(fake_.model); }

  // Ends the engine first, as the program does, so that no call is left in it.
  void ShutDown() {
    state_.SetDraining();
    fake_.engine->Drain(absl::InfiniteFuture());
    server_->Shutdown(absl::Now() + absl::Seconds(30));
    server_.reset();
  }

  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request = MakeScoreRequest()) {
    grpc::ClientContext context;
    v1::ScoreResponse response;
    TAOPD_RETURN_IF_ERROR(StatusOf(stub_->Score(&context, request, &response)));
    return response;
  }
  absl::StatusOr<std::string> Call(const std::string& method, const std::string& bytes) {
    return UnaryCall(channel_, method, bytes);
  }

  // grpc.health.v1.Health/Check with hand-made messages: 1 = SERVING, 2 = NOT_SERVING.
  int Health(const std::string& service) {
    const absl::StatusOr<std::string> answer =
        Call("/grpc.health.v1.Health/Check",
             "\x0a" + std::string(1, static_cast<char>(service.size())) + service);
    if (!answer.ok()) return -static_cast<int>(answer.status().code());
    return answer->size() < 2 ? 0 : (*answer)[1];
  }

  FakeModel fake_ = MakeFakeModel(/*with_tokenizer=*/true);
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  ServerMetrics metrics_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Teacher::Stub> stub_;
};

}  // namespace taopd::testing
