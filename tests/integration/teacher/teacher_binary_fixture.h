// The fixture of tests of the real taopd-teacher on the model of deploy/examples.
#pragma once

#include <grpcpp/grpcpp.h>
#include <httplib.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "tests/integration/teacher/teacher_process.h"
#include "tests/server/grpc/grpc_status.h"
#include "tests/support/process_usage.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

// The greedy continuation of token 1 by an independent float64 forward pass.
struct Golden {
  std::vector<uint32_t> ids;
  nlohmann::json top5;
};
inline Golden LoadGolden() {
  const nlohmann::json golden = nlohmann::json::parse(
      ReadFile(SourcePath("tests/integration/teacher/stories260K_greedy.json")));
  return {golden["ids"].get<std::vector<uint32_t>>(), golden["top5"]};
}

// Returns a channel that shares its connection with no other.
inline std::shared_ptr<grpc::Channel> NewChannel(const TeacherProcess& teacher) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(teacher.grpc_port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}
inline std::unique_ptr<v1::Teacher::Stub> Connect(const TeacherProcess& teacher) {
  return v1::Teacher::NewStub(NewChannel(teacher));
}

inline v1::ScoreRequest MakeRequest(const std::vector<uint32_t>& ids, uint32_t start,
                                    uint32_t top_k) {
  v1::ScoreRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  request.set_score_start(start);
  request.set_top_k(top_k);
  return request;
}

class TeacherBinaryFixture : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> extra = {}, const std::string& model = StoriesModel()) {
    std::vector<std::string> arguments = {"--model",        model, "--num-threads", "1",
                                          "--max-logprobs", "512"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    teacher_ = std::make_unique<TeacherProcess>(arguments, descriptors_);
    ASSERT_TRUE(teacher_->WaitUntilReady()) << teacher_->Errors();
    stub_ = Connect(*teacher_);
    http_ = NewClient();
  }
  httplib::Result Complete(const nlohmann::json& body) {
    return http_->Post("/v1/completions", body.dump(), "application/json");
  }
  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ScoreResponse response;
    TAOPD_RETURN_IF_ERROR(StatusOf(stub_->Score(&context, request, &response)));
    return response;
  }
  // Makes a client, such as for another thread.
  std::unique_ptr<httplib::Client> NewClient() {
    auto client = std::make_unique<httplib::Client>("127.0.0.1", teacher_->http_port());
    client->set_read_timeout(120);
    client->set_tcp_nodelay(true);  // a request is two writes: the second would wait for an ACK
    return client;
  }
  // Expects an answer with this status, and returns its body.
  static std::string BodyOf(const httplib::Result& answer, int status = 200) {
    EXPECT_TRUE(answer) << httplib::to_string(answer.error());
    if (!answer) return "";
    EXPECT_EQ(answer->status, status) << answer->body;
    return answer->body;
  }
  // Returns the processes that the teacher has started.
  std::vector<pid_t> Children() { return ChildrenOf(teacher_->pid()); }
  int64_t ResidentBytes() { return ProcessUsage::Of(teacher_->pid()).resident_bytes; }

  int descriptors_ = 0;  // the teacher's limit; 0 for this process's own
  std::unique_ptr<TeacherProcess> teacher_;
  std::unique_ptr<v1::Teacher::Stub> stub_;
  std::unique_ptr<httplib::Client> http_;
};

}  // namespace taopd::testing
