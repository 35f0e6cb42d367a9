#include "trainer/teacher/transport/teacher_protocols.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(ProtocolTest, AReplyMayHaveMoreValuesThanOtherTexts) {
  constexpr int32_t kTopK = 1'000'000;
  TeacherRequest request = {.token_ids = {1, 2, 2}, .top_k = kTopK};
  std::string row = "[-1,0,0]";
  for (int i = 1; i < kTopK; ++i) row += ",[-1,0,0]";
  const std::string body =
      Concat(R"({"meta_info":{"input_token_logprobs":[null,[-1,2,null],[-1,2,null]],)",
             R"("input_top_logprobs":[null,[)", row, "],[", row, "]]}}");
  ASSERT_OK_AND_ASSIGN(const TeacherScores scores,
                       MakeSglangProtocol()->ParseReply(body, request, "m"));
  EXPECT_EQ(scores.ids.size(), size_t{2 * kTopK});
}

TEST(EndpointTest, BecomesATarget) {
  EXPECT_EQ(ParseTeacherEndpoint("grpc://teacher-0.teachers:50051")->GrpcTarget(),
            "dns:///teacher-0.teachers:50051");
  EXPECT_EQ(ParseTeacherEndpoint("grpc://127.0.0.1:1")->GrpcTarget(), "dns:///127.0.0.1:1");
  EXPECT_EQ(ParseTeacherEndpoint("grpc://[::1]:65535")->GrpcTarget(), "dns:///[::1]:65535");
  EXPECT_FALSE(ParseTeacherEndpoint("grpc://a:1")->tls);
  EXPECT_TRUE(ParseTeacherEndpoint("grpcs://a:1")->tls);
}

TEST(EndpointTest, BecomesAUrl) {
  const TeacherEndpoint plain = *ParseTeacherEndpoint("vllm+http://teacher:8000");
  EXPECT_EQ(plain.protocol->make_http, &MakeVllmProtocol);
  EXPECT_EQ(plain.Url(), "http://teacher:8000");
  EXPECT_EQ(plain.prefix, "");
  const TeacherEndpoint secure = *ParseTeacherEndpoint("sglang+https://[::1]/a/b/");
  EXPECT_EQ(secure.protocol->make_http, &MakeSglangProtocol);
  EXPECT_EQ(secure.Url(), "https://[::1]:443");
  EXPECT_EQ(secure.prefix, "/a/b");
  EXPECT_EQ(ParseTeacherEndpoint("vllm+http://teacher")->Url(), "http://teacher:80");
  EXPECT_EQ(ParseTeacherEndpoint("vllm+http://teacher:1/v1/")->prefix, "");
  EXPECT_EQ(ParseTeacherEndpoint("vllm+http://teacher:1/x/v1")->prefix, "/x");
}

TEST(EndpointTest, EverySchemeOfTheTableIsKnownAndNamed) {
  const std::string error(ParseTeacherEndpoint("").status().message());
  for (const TeacherProtocol& protocol : kTeacherProtocols) {
    for (const bool tls : {false, true}) {
      const std::string scheme = tls ? protocol.tls_scheme : protocol.scheme;
      ASSERT_OK_AND_ASSIGN(const TeacherEndpoint endpoint, ParseTeacherEndpoint(scheme + "://a:1"));
      EXPECT_EQ(endpoint.protocol, &protocol);
      EXPECT_EQ(endpoint.tls, tls);
      EXPECT_THAT(error, HasSubstr(scheme));
    }
  }
}

TEST(EndpointTest, MalformedOnesAreNamed) {
  for (const char* endpoint : {"",
                               "teacher:50051",
                               "http://teacher:1",
                               "grpc://",
                               "grpc://teacher",
                               "grpc://:50051",
                               "grpc://teacher:",
                               "grpc://teacher:0",
                               "grpc://teacher:65536",
                               "grpc://teacher:-1",
                               "grpc://teacher:12x",
                               "grpc://teacher:1/path",
                               "grpc://user@teacher:1",
                               "grpc://a b:1",
                               "grpc://::1:50051",
                               "grpc://[::1]",
                               "grpc://[]:1",
                               "grpc://[x/y]:1",
                               "GRPC://a:1",
                               "vllm://a:1",
                               "vllm+http://",
                               "vllm+http:///v1",
                               "vllm+http://a:1/x?y",
                               "sglang+http://a b:1",
                               "vllm+http://a:b",
                               "vllm+http://u:p@a:1"}) {
    EXPECT_ERROR(ParseTeacherEndpoint(endpoint), kInvalidArgument,
                 std::string("\"") + endpoint + "\"");
  }
}

TEST(EndpointTest, ListsAreNotEmptyAndHaveNoTwins) {
  EXPECT_ERROR(ParseTeacherEndpoints({}), kInvalidArgument, "no teacher");
  EXPECT_ERROR(ParseTeacherEndpoints({"grpc://a:1", "grpc://b:1", "grpc://a:1"}), kInvalidArgument,
               "twice");
  EXPECT_ERROR(ParseTeacherEndpoints({"grpc://a:1", "grpcs://a:1"}), kInvalidArgument, "twice");
  EXPECT_ERROR(ParseTeacherEndpoints({"grpc://a:1", "vllm+http://a:2"}), kInvalidArgument,
               "different protocols");
  EXPECT_EQ(ParseTeacherEndpoints({"grpc://a:1", "grpcs://a:2"})->size(), 2u);
}

}  // namespace
}  // namespace taopd::testing
