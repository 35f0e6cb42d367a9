#include "trainer/teacher/endpoint.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

TEST(EndpointTest, BecomesATarget) {
  EXPECT_EQ(*GrpcTargetOfEndpoint("grpc://teacher-0.teachers:50051"),
            "dns:///teacher-0.teachers:50051");
  EXPECT_EQ(*GrpcTargetOfEndpoint("grpc://127.0.0.1:1"), "dns:///127.0.0.1:1");
  EXPECT_EQ(*GrpcTargetOfEndpoint("grpc://[::1]:65535"), "dns:///[::1]:65535");
}

TEST(EndpointTest, MalformedOnesAreNamed) {
  for (const char* endpoint :
       {"", "teacher:50051", "http://teacher:1", "grpc://", "grpc://teacher", "grpc://:50051",
        "grpc://teacher:", "grpc://teacher:0", "grpc://teacher:65536", "grpc://teacher:-1",
        "grpc://teacher:12x", "grpc://teacher:1/path", "grpc://user@teacher:1", "grpc://a b:1",
        "grpc://::1:50051", "grpc://[::1]", "grpc://[]:1", "grpc://[x/y]:1", "GRPC://a:1"}) {
    EXPECT_ERROR(GrpcTargetOfEndpoint(endpoint), absl::StatusCode::kInvalidArgument,
                 std::string("\"") + endpoint + "\"");
  }
}

TEST(EndpointTest, ListsAreNotEmptyAndHaveNoTwins) {
  EXPECT_ERROR(GrpcTargetsOfEndpoints({}), absl::StatusCode::kInvalidArgument, "no teacher");
  EXPECT_ERROR(GrpcTargetsOfEndpoints({"grpc://a:1", "grpc://b:1", "grpc://a:1"}),
               absl::StatusCode::kInvalidArgument, "twice");
  EXPECT_EQ(GrpcTargetsOfEndpoints({"grpc://a:1", "grpc://a:2"})->size(), 2u);
}

}  // namespace
}  // namespace taopd
