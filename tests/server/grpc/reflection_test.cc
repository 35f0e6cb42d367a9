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
  void Start() {
    const GrpcServerOptions options = {.reflection = true};
    Listen(options);
  }
  // Sends the requests on one stream, one after another.
  template <typename Service, typename Request, typename Response>
  grpc::Status Ask(const std::vector<Request>& requests, std::vector<Response>* responses) {
    const auto stub = Service::NewStub(channel_);
    grpc::ClientContext context;
    const auto stream = stub->ServerReflectionInfo(&context);
    for (const Request& request : requests) {
      Response response;
      if (!stream->Write(request) || !stream->Read(&response)) break;
      responses->push_back(response);
    }
    stream->WritesDone();
    return stream->Finish();
  }
  template <typename Version1>
  static std::vector<Version1> ListAndFind(const std::string& symbol) {
    std::vector<Version1> requests(2);
    requests[0].set_list_services("");
    requests[1].set_file_containing_symbol(symbol);
    return requests;
  }
};

TEST_F(ReflectionTest, IsNotServedUnlessAskedFor) {
  Listen({});
  for (const char* version : {"v1", "v1alpha"}) {
    const std::string service = Concat("/grpc.reflection.", version, ".ServerReflection");
    std::string answer;
    EXPECT_EQ(Call(service + "/ServerReflectionInfo", "", &answer).error_code(),
              grpc::StatusCode::UNIMPLEMENTED)
        << version;
  }
}

TEST_F(ReflectionTest, NamesAndDescribesTheServices) {
  Start();
  std::vector<ReflectionResponse> responses;
  const grpc::Status status = Ask<grpc::reflection::v1::ServerReflection>(
      ListAndFind<ReflectionRequest>("taopd.v1.Teacher.Score"), &responses);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(responses.size(), 2u);
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
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  Start();
  std::vector<grpc::reflection::v1alpha::ServerReflectionResponse> old;
  ASSERT_TRUE((
      Ask<grpc::reflection::v1alpha::ServerReflection>(ListAndFind<Request>("vllm.Inference"), &old)
          .ok()));
  ASSERT_EQ(old.size(), 2u);
  // inference.proto imports another file.
  EXPECT_EQ(old[1].file_descriptor_response().file_descriptor_proto_size(), 2);
  ASSERT_EQ(old[0].list_services_response().service_size(), 6);
  for (const auto& service : old[0].list_services_response().service()) {
    std::vector<ReflectionResponse> described;
    ASSERT_TRUE((Ask<grpc::reflection::v1::ServerReflection>(
                     ListAndFind<ReflectionRequest>(service.name()), &described)
                     .ok()));
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
