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
#include "tests/support/process_usage.h"

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

inline std::unique_ptr<v1::Teacher::Stub> Connect(const TeacherProcess& teacher) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  return v1::Teacher::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(teacher.grpc_port()),
                                grpc::InsecureChannelCredentials(), arguments));
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
    http_ = std::make_unique<httplib::Client>("127.0.0.1", teacher_->http_port());
    http_->set_read_timeout(60);
    http_->set_tcp_nodelay(true);  // a request is two writes: the second would wait for an ACK
  }
  httplib::Result Complete(const nlohmann::json& body) {
    return http_->Post("/v1/completions", body.dump(), "application/json");
  }
  grpc::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* response) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return stub_->Score(&context, request, response);
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
