// Every method of every service asks for a key, before it looks at the request.
#include <gmock/gmock.h>

#include "server/security/api_keys.h"
#include "tests/server/grpc/every_method.h"
#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

class GrpcKeysTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    Ready();
    Listen({.keys = &keys_, .reflection = true});
    server_->UpdateHealth();
  }

  // The status of a call, with an empty message unless `message` says otherwise.
  absl::StatusCode Call(const std::string& method, const std::vector<std::string>& authorizations,
                        const std::string& message = "") {
    return UnaryCall(channel_, method, message, authorizations).status().code();
  }

  static std::vector<std::string> Methods() {
    std::vector<std::string> names;
    for (const auto* method : EveryMethod()) names.push_back(PathOf(*method));
    return names;
  }

  ApiKeys keys_{{"the-key"}, ""};
};

TEST_F(GrpcKeysTest, EveryMethodAsksForAKey) {
  ASSERT_GE(Methods().size(), 20u);
  for (const std::string& method : Methods()) {
    SCOPED_TRACE(method);
    EXPECT_EQ(Call(method, {}), kUnauthenticated);
    EXPECT_EQ(Call(method, {"Bearer another"}), kUnauthenticated);
    EXPECT_EQ(Call(method, {}, "malformed"), kUnauthenticated);
    EXPECT_EQ(Call(method, {"Bearer the-key", "Bearer the-key"}), kUnauthenticated);
    EXPECT_NE(Call(method, {"Bearer the-key"}), kUnauthenticated);
  }
}

TEST_F(GrpcKeysTest, ARefusedCallIsCountedOnce) {
  for (const std::string& method : Methods()) Call(method, {});
  Call("/taopd/v1/Teacher.Score", {});
  // A call is counted after its answer has left: the server ends when all are.
  ShutDown();
  const std::string text = metrics_.Text(state_);
  for (const char* method :
       {"grpc/Score", "grpc/ScoreStream", "grpc/Generate", "grpc/GetTeacherInfo",
        "grpc/vllm.Inference/Generate", "grpc/vllm.Control/Abort", "grpc/unknown"}) {
    EXPECT_THAT(text, HasSubstr(Concat("taopd_teacher_requests_total{code=\"UNAUTHENTICATED"
                                       "\",method=\"",
                                       method, "\"} 1\n")));
  }
}

TEST_F(GrpcKeysTest, ProbesNeedNone) { EXPECT_EQ(Call("/grpc.health.v1.Health/Check", {}), kOk); }

}  // namespace
}  // namespace taopd::testing
