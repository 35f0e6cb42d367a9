#include "trainer/rollout/endpoints/rollout_protocols.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(RolloutEndpoint, AWorkerForEachAddress) {
  ASSERT_OK_AND_ASSIGN(const auto workers,
                       MakeRolloutWorkers({"grpc://a:1", "grpcs://b:2"}, RolloutWorkerOptions()));
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0]->address(), "grpc://a:1");
  EXPECT_EQ(workers[1]->address(), "grpcs://b:2");
}

TEST(RolloutEndpoint, NamesWhatIsWrong) {
  const auto error = [](const std::vector<std::string>& endpoints,
                        const RolloutWorkerOptions& options = {}) {
    return MakeRolloutWorkers(endpoints, options).status();
  };
  EXPECT_ERROR(error({"http://a:1"}), kInvalidArgument, "http://a:1");
  EXPECT_ERROR(error({"sglang+http://a:1"}), kInvalidArgument, "known scheme");
  EXPECT_ERROR(error({"grpc://a"}), kInvalidArgument, "has no port");
  EXPECT_ERROR(error({"grpc://a:1", "grpc://a:1"}), kInvalidArgument, "twice");
  RolloutWorkerOptions key;
  key.api_key = "a key\n";  // gRPC would end the process
  EXPECT_ERROR(error({"grpc://a:1"}, key), kInvalidArgument, "API key");
  RolloutWorkerOptions tls;
  tls.tls_ca_file = "/absent.pem";
  EXPECT_ERROR(error({"grpcs://a:1"}, tls), kInvalidArgument, "tls_ca_file");
  const TempDir dir;
  tls.tls_ca_file = dir.File("ca.pem");
  WriteFile(tls.tls_ca_file, "x");
  EXPECT_ERROR(error({"grpc://a:1"}, tls), kInvalidArgument, "no endpoint uses TLS");
}

TEST(RolloutEndpoint, AKeyWithoutEncryptionIsNamedWithItsServer) {
  RolloutWorkerOptions key;
  key.api_key = "secret";
  ::testing::internal::CaptureStderr();
  EXPECT_OK(MakeRolloutWorkers({"grpcs://a:1", "grpc://b:2"}, key));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("without encryption"));
  EXPECT_THAT(log, HasSubstr("b:2"));
  EXPECT_THAT(log, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace taopd::testing
