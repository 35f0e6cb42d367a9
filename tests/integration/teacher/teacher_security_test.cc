// Tests of the keys and certificates of the real taopd-teacher: their sources, their replacement
// and their secrecy.
#include <csignal>
#include <string>

#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/files.h"

namespace taopd::testing {
namespace {

constexpr char kOfFile[] = "key-of-the-file-5d1f";
constexpr char kOfFlag[] = "key-of-the-flag-77a2";
constexpr char kOfEnvironment[] = "key-of-the-environment-c3e4";
constexpr int64_t kMaxBombBytes = 64 << 20;
// gRPC's server looks for new certificates a few times per second, and the rest of the teacher at a
// signal.
constexpr absl::Duration kNewFilesAreRead = absl::Seconds(20);

class TeacherSecurityTest : public TeacherBinaryFixture {
 protected:
  int Models(const std::string& key) {
    const auto answer = http_->Get("/v1/models", {{"Authorization", "Bearer " + key}});
    return answer ? answer->status : 0;
  }
  // Lets the teacher load its files again, and waits until it says so.
  void Reload(const std::string& says) {
    teacher_->Signal(SIGHUP);
    EXPECT_TRUE(PollUntil(kNewFilesAreRead, [&] {
      return teacher_->Errors().find(says) != std::string::npos;
    })) << teacher_->Errors();
  }
  // Returns the peak of the resident memory.
  int64_t PeakBytes() { return StatusBytes("VmHWM", Concat(teacher_->pid())); }
};

TEST_F(TeacherSecurityTest, KeysComeFromThreePlacesAndAreReplacedOnSighup) {
  TempDir dir;
  const std::string path = dir.File("keys");
  WriteFile(path, std::string(kOfFile) + "\n");
  ::setenv("VLLM_API_KEY", kOfEnvironment, 1);
  Start({"--api-key-file", path, "--api-key", kOfFlag});
  ::unsetenv("VLLM_API_KEY");
  for (const char* key : {kOfFile, kOfFlag, kOfEnvironment}) EXPECT_EQ(Models(key), 200) << key;
  EXPECT_EQ(Models("wrong"), 401);

  WriteFile(path, "key-that-is-new\n");
  Reload("were reopened");
  EXPECT_EQ(Models("key-that-is-new"), 200);
  EXPECT_EQ(Models(kOfFile), 401);
  WriteFile(path, "");
  Reload("stay in use");
  EXPECT_EQ(Models("key-that-is-new"), 200);
  for (const char* key : {kOfFile, kOfFlag, kOfEnvironment, "key-that-is-new"}) {
    EXPECT_THAT(teacher_->Errors() + teacher_->Output(), Not(HasSubstr(key)));
  }
  EXPECT_EQ(teacher_->Terminate(), 0);
}

TEST_F(TeacherSecurityTest, CertificatesAreReplacedOnSighupForBothProtocols) {
  TempDir dir;
  const Certificate first("first", nullptr, true), second("second", nullptr, true);
  first.Write(dir.File("first"));
  second.Write(dir.File("second"));
  const std::string server = dir.File("server"), keys = dir.File("keys");
  Certificate("localhost", &first, false).Write(server);
  WriteFile(keys, std::string(kOfFile) + "\n");
  Start({"--ssl-certfile", server + ".crt", "--ssl-keyfile", server + ".key", "--api-key-file",
         keys});
  // Return whether a client that trusts only this authority is answered.
  const auto over_grpc = [&](const std::string& authority) {
    const auto credentials = grpc::SslCredentials({ReadFile(dir.File(authority + ".crt")), "", ""});
    const auto stub = v1::Teacher::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(teacher_->grpc_port()), credentials));
    grpc::ClientContext context;
    context.AddMetadata("authorization", Concat("Bearer ", kOfFile));
    v1::GetTeacherInfoResponse info;
    return stub->GetTeacherInfo(&context, {}, &info).ok();
  };
  const auto over_http = [&](const std::string& authority) {
    httplib::SSLClient https("127.0.0.1", teacher_->http_port());
    https.set_ca_cert_path(dir.File(authority + ".crt").c_str());
    https.enable_server_certificate_verification(true);
    const auto answer = https.Get("/v1/models", {{"Authorization", Concat("Bearer ", kOfFile)}});
    return answer && answer->status == 200;
  };
  EXPECT_TRUE(over_grpc("first"));
  EXPECT_FALSE(over_grpc("second"));
  EXPECT_TRUE(over_http("first"));
  Certificate("localhost", &second, false).Write(server);
  Reload("were reopened");
  EXPECT_TRUE(over_http("second"));
  EXPECT_FALSE(over_http("first"));
  EXPECT_TRUE(PollUntil(kNewFilesAreRead, [&] { return over_grpc("second"); }));
  EXPECT_FALSE(over_grpc("first"));
  // A bad file of keys does not keep the old certificate.
  Certificate("localhost", &first, false).Write(server);
  WriteFile(keys, "");
  Reload("stay in use");
  EXPECT_TRUE(over_http("first"));
  EXPECT_EQ(teacher_->Terminate(), 0);
}

TEST_F(TeacherSecurityTest, MessageThatInflatesTakesNoMemory) {
  Start();
  v1::ScoreRequest request;
  request.set_request_id(std::string(128 << 20, 'a'));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const int64_t before = PeakBytes();
  v1::ScoreResponse response;
  EXPECT_EQ(stub_->Score(&context, request, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_LT(PeakBytes() - before, kMaxBombBytes);
}

TEST_F(TeacherSecurityTest, FilesThatCannotBeReadEndTheStart) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--api-key-file", "/none/keys"},
        {"--ssl-certfile", "/none/a.crt", "--ssl-keyfile", "/none/a.key"}}) {
    std::vector<std::string> arguments = {"--model", StoriesModel()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    TeacherProcess teacher(arguments);
    EXPECT_EQ(teacher.WaitForExit(), 64);
    EXPECT_THAT(teacher.Errors(), HasSubstr("/none/"));
  }
}

}  // namespace
}  // namespace taopd::testing
