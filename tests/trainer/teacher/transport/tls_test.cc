// Encryption, certificates of both sides, and API keys, with real servers.
#include <httplib.h>

#include "tests/support/certificates.h"
#include "tests/support/files.h"
#include "tests/support/http_listener.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Each is its own authority.
    Certificate("teacher", nullptr, /*is_authority=*/true).Write(dir_.File("server"));
    Certificate("trainer", nullptr, /*is_authority=*/true).Write(dir_.File("client"));
  }
  // Encrypted, with or without a certificate of the client.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(bool asks_client) const {
    grpc::SslServerCredentialsOptions options(
        asks_client ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    options.pem_key_cert_pairs.push_back(
        {ReadFile(dir_.File("server.key")), ReadFile(dir_.File("server.crt"))});
    if (asks_client) options.pem_root_certs = ReadFile(dir_.File("client.crt"));
    return grpc::SslServerCredentials(options);
  }
  TeacherClientOptions Options(const std::string& scheme, int port) const {
    TeacherClientOptions options = FastOptions({});
    options.endpoints = {Concat(scheme, "://127.0.0.1:", port)};
    return options;
  }
  static absl::Status ConnectAndScore(const TeacherClientOptions& options, absl::Duration timeout) {
    TAOPD_ASSIGN_OR_RETURN(auto client, MakeNetworkTeacherClient(options));
    TAOPD_RETURN_IF_ERROR(client->Connect(timeout).status());
    return ScoreOne(client.get(), ExampleRequest(1)).status();
  }

  TempDir dir_;
};

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(300);

TEST_F(TlsTest, GrpcIsEncrypted) {
  FakeTeacher teacher;
  teacher.Start(0, ServerCredentials(/*asks_client=*/false));
  TeacherClientOptions options = Options("grpcs", teacher.port());
  EXPECT_ERROR(ConnectAndScore(options, kShort), kUnavailable, "");
  options.tls_ca_file = dir_.File("client.crt");  // another authority
  EXPECT_ERROR(ConnectAndScore(options, kShort), kUnavailable, "");
  options.tls_ca_file = dir_.File("server.crt");
  EXPECT_OK(ConnectAndScore(options, kLong));
  EXPECT_ERROR(ConnectAndScore(Options("grpc", teacher.port()), kShort), kUnavailable, "");
}

TEST_F(TlsTest, GrpcServersMayAskForACertificate) {
  FakeTeacher teacher;
  teacher.Start(0, ServerCredentials(/*asks_client=*/true));
  TeacherClientOptions options = Options("grpcs", teacher.port());
  options.tls_ca_file = dir_.File("server.crt");
  EXPECT_ERROR(ConnectAndScore(options, kShort), kUnavailable, "");
  options.tls_cert_file = dir_.File("client.crt");
  options.tls_key_file = dir_.File("client.key");
  EXPECT_OK(ConnectAndScore(options, kLong));
}

TEST_F(TlsTest, HttpIsEncrypted) {
  httplib::SSLServer server(dir_.File("server.crt").c_str(), dir_.File("server.key").c_str(),
                            dir_.File("client.crt").c_str());  // asks for the client's certificate
  ASSERT_TRUE(server.is_valid());
  server.Get("/v1/models", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"data":[{"id":"m"}]})", "application/json");
  });
  server.Post("/v1/completions", [](const httplib::Request& request, httplib::Response& response) {
    const auto token = nlohmann::json::parse(request.body).at("prompt").at(1).get<int>();
    const nlohmann::json scores = {{Concat(token), -1.0}, {"90", -9.0}, {"91", -9.0}, {"92", -9.0}};
    response.set_content(
        nlohmann::json{{"choices", {{{"prompt_logprobs", {nullptr, scores}}}}}}.dump(),
        "application/json");
  });
  const HttpListener listener(&server);

  TeacherClientOptions options = Options("vllm+https", listener.port());
  options.probe_top_k = 4;
  const auto connect = [&](absl::Duration timeout) {
    auto client = MakeNetworkTeacherClient(options);
    return client.ok() ? (*client)->Connect(timeout).status() : client.status();
  };
  EXPECT_ERROR(connect(kShort), kUnavailable, "");
  options.tls_ca_file = dir_.File("server.crt");
  EXPECT_ERROR(connect(kShort), kUnavailable, "");
  options.tls_cert_file = dir_.File("client.crt");
  options.tls_key_file = dir_.File("client.key");
  EXPECT_OK(connect(kLong));
}

TEST_F(TlsTest, FilesAreChecked) {
  TeacherClientOptions options = Options("grpcs", 1);
  options.tls_ca_file = "/nowhere.pem";
  EXPECT_ERROR(MakeNetworkTeacherClient(options), kInvalidArgument, "tls_ca_file: ");
  options.tls_ca_file = dir_.File("server.crt");
  options.tls_cert_file = dir_.File("client.crt");
  EXPECT_ERROR(MakeNetworkTeacherClient(options), kInvalidArgument,
               "tls_cert_file and tls_key_file");
  options = Options("grpc", 1);
  options.tls_ca_file = dir_.File("server.crt");
  EXPECT_ERROR(MakeNetworkTeacherClient(options), kInvalidArgument, "no endpoint uses TLS");
}

}  // namespace
}  // namespace taopd::testing
