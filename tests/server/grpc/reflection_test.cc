// Reflection over real sockets, off and on. grpc_keys_test.cc checks that it asks for a key.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include "proto/grpc/reflection_v1.grpc.pb.h"
#include "proto/grpc/reflection_v1alpha.grpc.pb.h"
#include "server/grpc/reflection.h"
#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

using ReflectionRequest = grpc::reflection::v1::ServerReflectionRequest;
using ReflectionResponse = grpc::reflection::v1::ServerReflectionResponse;

class ReflectionTest : public GrpcServerFixture {
 protected:
  void SetUp() override {}
  // Asks for the list of services and for the file of the symbol, on one stream.
  template <typename Service, typename Request, typename Response>
  absl::StatusOr<std::vector<Response>> ListAndFind(const std::string& symbol) {
    const auto stub = Service::NewStub(channel_);
    grpc::ClientContext context;
    const auto stream = stub->ServerReflectionInfo(&context);
    std::vector<Request> requests(2);
    requests[0].set_list_services("");
    requests[1].set_file_containing_symbol(symbol);
    std::vector<Response> responses(2);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(stream->Write(requests[i]) && stream->Read(&responses[i])) << i;
    stream->WritesDone();
    TAOPD_RETURN_IF_ERROR(StatusOf(stream->Finish()));
    return responses;
  }
  absl::StatusOr<std::vector<ReflectionResponse>> ListAndFind(const std::string& symbol) {
    return ListAndFind<grpc::reflection::v1::ServerReflection, ReflectionRequest,
                       ReflectionResponse>(symbol);
  }
};

TEST_F(ReflectionTest, IsNotServedUnlessAskedFor) {
  Listen({});
  for (const char* version : {"v1", "v1alpha"}) {
    const std::string service = Concat("/grpc.reflection.", version, ".ServerReflection");
    EXPECT_EQ(Call(service + "/ServerReflectionInfo", "").status().code(), kUnimplemented)
        << version;
  }
}

TEST_F(ReflectionTest, NamesAndDescribesTheServices) {
  Listen({.reflection = true});
  ASSERT_OK_AND_ASSIGN(const auto responses, ListAndFind("taopd.v1.Teacher.Score"));
  std::vector<std::string> names;
  for (const auto& service : responses[0].list_services_response().service())
    names.push_back(service.name());
  EXPECT_THAT(names,
              ElementsAre("taopd.v1.Teacher", "vllm.Inference", "vllm.Control",
                          "vllm.grpc.engine.VllmEngine", "grpc.reflection.v1.ServerReflection",
                          "grpc.reflection.v1alpha.ServerReflection"));
  const auto& files = responses[1].file_descriptor_response();
  ASSERT_EQ(files.file_descriptor_proto_size(), 1);
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(file.ParseFromString(files.file_descriptor_proto(0)));
  EXPECT_EQ(file.package(), "taopd.v1");
  EXPECT_EQ(file.service(0).name(), "Teacher");
  EXPECT_EQ(responses[1].original_request().file_containing_symbol(), "taopd.v1.Teacher.Score");
  // A call is counted after its answer has left.
  ShutDown();
  EXPECT_THAT(metrics_.Text(state_), HasSubstr("code=\"OK\",method=\"grpc/Reflection\"} 1\n"));
}

// Every service that is listed can be described, in both versions.
TEST_F(ReflectionTest, TheOlderVersionSaysTheSame) {
  namespace v1alpha = grpc::reflection::v1alpha;
  Listen({.reflection = true});
  const auto answer = ListAndFind<v1alpha::ServerReflection, v1alpha::ServerReflectionRequest,
                                  v1alpha::ServerReflectionResponse>("vllm.Inference");
  ASSERT_OK_AND_ASSIGN(const auto old, answer);
  // inference.proto imports another file.
  EXPECT_EQ(old[1].file_descriptor_response().file_descriptor_proto_size(), 2);
  ASSERT_EQ(old[0].list_services_response().service_size(), 6);
  for (const auto& service : old[0].list_services_response().service()) {
    ASSERT_OK_AND_ASSIGN(const auto described, ListAndFind(service.name()));
    EXPECT_TRUE(described[1].has_file_descriptor_response()) << service.name();
  }
}

TEST(ReflectionAnswerTest, ErrorsNameWhatIsNotKnown) {
  const auto ask = [](const auto& edit) {
    ReflectionRequest request;
    edit(&request);
    return AnswerReflection(request, {}).error_response();
  };
  EXPECT_EQ(ask([](auto*) {}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto symbol = ask([](auto* r) { r->set_file_containing_symbol("a.b.C"); });
  EXPECT_EQ(symbol.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(symbol.error_message(), HasSubstr("symbol a.b.C"));
  EXPECT_THAT(ask([](auto* r) { r->set_file_by_filename("a.proto"); }).error_message(),
              HasSubstr("file a.proto"));
  EXPECT_THAT(
      ask([](auto* r) {
        r->mutable_file_containing_extension()->set_containing_type("taopd.v1.ScoreRequest");
        r->mutable_file_containing_extension()->set_extension_number(7);
      }).error_message(),
      HasSubstr("extension 7 of taopd.v1.ScoreRequest"));
  const auto large = ask([](auto* r) { r->set_file_by_filename(std::string(5000, 'a')); });
  EXPECT_EQ(large.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(large.error_message(), HasSubstr("the limit is 4096"));
}

TEST(ReflectionAnswerTest, FilesAndExtensionsAreFoundByName) {
  ReflectionRequest request;
  request.set_file_by_filename("proto/taopd/v1/teacher.proto");
  EXPECT_EQ(AnswerReflection(request, {}).file_descriptor_response().file_descriptor_proto_size(),
            1);
  request.set_all_extension_numbers_of_type("taopd.v1.ScoreRequest");
  const auto numbers = AnswerReflection(request, {}).all_extension_numbers_response();
  EXPECT_EQ(numbers.base_type_name(), "taopd.v1.ScoreRequest");
  EXPECT_EQ(numbers.extension_number_size(), 0);
}

}  // namespace
}  // namespace taopd::testing
