// TLS and keys over both protocols, with real sockets and certificates made here.
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/credentials.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/security/api_keys.h"
#include "server/security/tls_files.h"
#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/server/grpc/guard/raw_http2.h"
#include "tests/support/certificates.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// gRPC's server looks for new certificates a few times per second.
constexpr absl::Duration kNewFilesAreRead = absl::Seconds(20);

class SecureServersTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    authority_.Write(Path("ca"));
    Certificate("localhost", &authority_, false).Write(Path("server"));
    Certificate("client", &authority_, false).Write(Path("client"));
    Ready();
  }
  void TearDown() override {
    fake_.engine->Drain(absl::Now());
    if (http_ != nullptr) http_->Shutdown(absl::Now());
    GrpcServerFixture::TearDown();
  }
  std::string Path(const std::string& name) const { return dir_.File(name); }

  void Start(const TlsPaths& paths, const std::vector<std::string>& keys) {
    tls_ = std::make_unique<TlsFiles>(paths);
    ASSERT_OK(tls_->Reload());
    keys_ = std::make_unique<ApiKeys>(keys, "");
    const HttpServerOptions options = {.health_port = -1, .tls = tls_.get(), .keys = keys_.get()};
    ASSERT_OK_AND_ASSIGN(http_, HttpServer::Listen(
                                    "127.0.0.1", 0, &state_, &metrics_, [] {}, options));
    Listen({.tls = paths, .keys = keys_.get()});
  }
  TlsPaths ServerPaths(bool mutual) const {
    return {Path("server.crt"), Path("server.key"), mutual ? Path("ca.crt") : ""};
  }
  // The status of a completion over HTTPS; 0 if there is no answer.
  int Complete(const std::string& client) {
    const std::string certificate = client.empty() ? "" : Path(client + ".crt");
    const std::string private_key = client.empty() ? "" : Path(client + ".key");
    httplib::SSLClient https("127.0.0.1", http_->port(), certificate, private_key);
    https.set_ca_cert_path(Path("ca.crt").c_str());
    https.enable_server_certificate_verification(true);
    const auto answer = https.Post("/v1/completions", "{\"prompt\":[1]}", "application/json");
    return answer ? answer->status : 0;
  }
  absl::StatusCode Info(std::shared_ptr<grpc::ChannelCredentials> credentials,
                        const std::string& key = "") {
    const auto stub = v1::Teacher::NewStub(
        grpc::CreateChannel(HostPort("127.0.0.1", server_->port()), std::move(credentials)));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    v1::GetTeacherInfoResponse response;
    return StatusOf(stub->GetTeacherInfo(&context, {}, &response)).code();
  }
  std::shared_ptr<grpc::ChannelCredentials> TlsCredentials(const std::string& client) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadFile(Path("ca.crt"));
    if (!client.empty()) {
      options.pem_cert_chain = ReadFile(Path(client + ".crt"));
      options.pem_private_key = ReadFile(Path(client + ".key"));
    }
    return grpc::SslCredentials(options);
  }

  TempDir dir_;
  const Certificate authority_{"authority", nullptr, true};
  std::unique_ptr<TlsFiles> tls_;
  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(SecureServersTest, SpeaksTls) {
  Start(ServerPaths(/*mutual=*/false), {});
  EXPECT_EQ(Complete(""), 200);
  EXPECT_EQ(Info(TlsCredentials("")), kOk);
  EXPECT_EQ(Info(grpc::InsecureChannelCredentials()), kUnavailable);
  EXPECT_THAT(AskRaw(http_->port(), "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"),
              Not(HasSubstr("HTTP")));
  // The port of the probes stays plain.
  EXPECT_EQ(httplib::Client("127.0.0.1", http_->health_port()).Get("/health")->status, 200);
}

TEST_F(SecureServersTest, LargeMessagesPassThroughTls) {
  Start(ServerPaths(/*mutual=*/false), {});
  httplib::SSLClient https("127.0.0.1", http_->port());
  https.enable_server_certificate_verification(false);
  for (int i = 0; i < 3; ++i) {  // on one connection
    const auto answer = https.Post(
        "/v1/completions", "{\"prompt\":[1]}" + std::string(5 << 20, ' '), "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
  }
}

TEST_F(SecureServersTest, LargeGrpcMessagesPassThroughTls) {
  Start(ServerPaths(/*mutual=*/true), {});
  const auto stub = v1::Teacher::NewStub(
      grpc::CreateChannel(HostPort("127.0.0.1", server_->port()), TlsCredentials("client")));
  v1::ScoreRequest request;
  request.set_expected_revision(std::string(60 << 20, 'x'));
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::ScoreResponse response;
    EXPECT_ERROR(stub->Score(&context, request, &response), kFailedPrecondition, "");
  }
}

// gRPC's clients refuse a server that does not speak h2 behind TLS; the server does the same.
TEST_F(SecureServersTest, GrpcSpeaksHttp2AloneBehindTlsAndJudgesItsFrames) {
  Start(ServerPaths(/*mutual=*/false), {});
  const std::string flood = kHttp2Preface + MakeFrame(FrameType::kSettings, 0, 0) +
                            MakeFrame(FrameType::kHeaders, 0, 1) +
                            MakeFrame(FrameType::kHeaders, 0, 1);
  for (const std::string& offered : {std::string(), std::string("\x02h2")}) {
    RawClient client(server_->port());
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                               &SSL_CTX_free);
    const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), &SSL_free);
    SSL_set_fd(ssl.get(), client.fd());
    SSL_set_alpn_protos(ssl.get(), reinterpret_cast<const unsigned char*>(offered.data()),
                        static_cast<unsigned int>(offered.size()));
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    SSL_write(ssl.get(), flood.data(), static_cast<int>(flood.size()));
    std::string all;
    std::array<char, 4096> buffer;
    for (int got; (got = SSL_read(ssl.get(), buffer.data(), buffer.size())) > 0;) {
      all.append(buffer.data(), static_cast<size_t>(got));
    }
    EXPECT_EQ(all.find("a header block must be in HEADERS") != std::string::npos, !offered.empty());
    EXPECT_EQ(all.empty(), offered.empty());
  }
}

TEST_F(SecureServersTest, ClientsShowACertificateOfTheAuthority) {
  const Certificate other("other", nullptr, true);
  Certificate("stranger", &other, false).Write(Path("stranger"));
  Start(ServerPaths(/*mutual=*/true), {});
  EXPECT_EQ(Complete("client"), 200);
  EXPECT_EQ(Complete(""), 0);
  EXPECT_EQ(Complete("stranger"), 0);
  EXPECT_EQ(Info(TlsCredentials("client")), kOk);
  EXPECT_EQ(Info(TlsCredentials("")), kUnavailable);
  EXPECT_EQ(Info(TlsCredentials("stranger")), kUnavailable);
}

TEST_F(SecureServersTest, NewCertificatesAreUsedAndBadOnesAreNot) {
  Start(ServerPaths(/*mutual=*/false), {});
  const Certificate other("other", nullptr, true);
  WriteFile(Path("server.crt"), "no certificate");
  EXPECT_ERROR(tls_->Reload(), kInvalidArgument, Path("server.crt"));
  EXPECT_EQ(Complete(""), 200);
  Certificate("localhost", &other, false).Write(Path("server"));
  ASSERT_OK(tls_->Reload());
  EXPECT_EQ(Complete(""), 0);  // the client does not know the authority
  other.Write(Path("ca"));
  EXPECT_EQ(Complete(""), 200);
}

// gRPC looks at the files by itself; a pair that does not fit together is left alone.
TEST_F(SecureServersTest, GrpcUsesNewCertificatesToo) {
  Start(ServerPaths(/*mutual=*/false), {});
  EXPECT_EQ(Info(TlsCredentials("")), kOk);
  const auto old_authority = TlsCredentials("");
  const Certificate other("other", nullptr, true);
  Certificate("localhost", &other, false).Write(Path("server"));
  other.Write(Path("ca"));
  EXPECT_TRUE(PollUntil(kNewFilesAreRead, [&] { return Info(TlsCredentials("")) == kOk; }));
  EXPECT_EQ(Info(old_authority), kUnavailable);
}

TEST_F(SecureServersTest, BadFilesAreRefusedAtTheStart) {
  Certificate("localhost", &authority_, false).Write(Path("another"));
  for (const TlsPaths& paths :
       {TlsPaths{Path("none.crt"), Path("server.key"), ""},
        TlsPaths{Path("server.crt"), Path("none.key"), ""},
        TlsPaths{Path("server.crt"), Path("another.key"), ""},
        TlsPaths{Path("server.crt"), Path("server.key"), Path("none.crt")}}) {
    EXPECT_ERROR(TlsFiles(paths).Reload(), kInvalidArgument, "ssl_");
  }
}

TEST_F(SecureServersTest, KeysOpenEverythingButTheProbes) {
  Start({}, {"secret", "other"});
  httplib::Client client("127.0.0.1", http_->port());
  for (const char* path : {"/health", "/ping", "/ready", "/metrics"}) {
    EXPECT_EQ(client.Get(path)->status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/version", "/nothing"}) {
    const auto refused = client.Get(path);
    EXPECT_EQ(refused->status, 401) << path;
    EXPECT_EQ(refused->body, "{\"error\":\"Unauthorized\"}");
  }
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer secret"}})->status, 200);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer other"}})->status, 200);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer wrong"}})->status, 401);
  const auto plain = grpc::InsecureChannelCredentials();
  EXPECT_EQ(Info(plain), kUnauthenticated);
  EXPECT_EQ(Info(plain, "wrong"), kUnauthenticated);
  EXPECT_EQ(Info(plain, "secret"), kOk);
  EXPECT_THAT(metrics_.Text(state_), HasSubstr("code=\"UNAUTHENTICATED\""));
}

}  // namespace
}  // namespace taopd::testing
