// Tests the life of gRPC connections, and the number of calls of one, over real sockets.
#include <grpcpp/grpcpp.h>

#include <thread>

#include "server/app/listener_watch.h"
#include "server/grpc/guard/grpc_guard.h"
#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

constexpr std::chrono::seconds kLongest{20};

class GrpcConnectionsTest : public GrpcServerFixture {
 protected:
  // A connection of its own, and its stub.
  struct Client {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Teacher::Stub> stub;
    absl::Status Score() const {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kLongest);
      v1::ScoreResponse response;
      return StatusOf(stub->Score(&context, MakeScoreRequest(), &response));
    }
    // Until the server has said that it closes the connection.
    bool WaitUntilClosed() const {
      return channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                         std::chrono::system_clock::now() + kLongest);
    }
  };

  void SetUp() override {}
  void Start(const GrpcConnectionLimits& limits) {
    Ready();
    Listen({.limits = limits});
  }
  Client Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    Client client;
    client.channel = grpc::CreateCustomChannel(HostPort("127.0.0.1", server_->port()),
                                               grpc::InsecureChannelCredentials(), arguments);
    client.stub = v1::Teacher::NewStub(client.channel);
    EXPECT_TRUE(client.channel->WaitForConnected(std::chrono::system_clock::now() + kLongest));
    return client;
  }
};

// A connection with a call is not idle: it outlives one that was made after it.
TEST_F(GrpcConnectionsTest, AnIdleConnectionIsClosedAndMadeAgain) {
  Start({.max_idle = absl::Milliseconds(300)});
  const Client busy = Connect();
  fake_.engine->Hold(true);
  std::thread call([&] { EXPECT_OK(busy.Score()); });
  fake_.engine->WaitForQueued(1);
  const Client idle = Connect();
  EXPECT_TRUE(idle.WaitUntilClosed());
  EXPECT_EQ(busy.channel->GetState(false), GRPC_CHANNEL_READY);
  fake_.engine->Hold(false);
  call.join();
  EXPECT_TRUE(busy.WaitUntilClosed());
  EXPECT_OK(idle.Score());
}

TEST_F(GrpcConnectionsTest, AnOldConnectionIsClosedOnceItsCallsHaveEnded) {
  Start({.max_age = absl::Milliseconds(300)});
  const Client client = Connect();
  fake_.engine->Hold(true);
  std::thread call([&] { EXPECT_OK(client.Score()); });
  fake_.engine->WaitForQueued(1);
  EXPECT_TRUE(client.WaitUntilClosed());
  fake_.engine->Hold(false);
  call.join();
  EXPECT_OK(client.Score());
}

TEST_F(GrpcConnectionsTest, CallsThatOutlastTheGraceAreCancelled) {
  Start({.max_age = absl::Milliseconds(200), .max_age_grace = absl::Milliseconds(200)});
  const Client client = Connect();
  fake_.engine->Hold(true);
  EXPECT_EQ(client.Score().code(), kUnavailable);
  fake_.engine->WaitForCancels(1);
}

// The SETTINGS frame (RFC 9113, section 6.5) that the server sends first.
TEST_F(GrpcConnectionsTest, TellsHowManyCallsAConnectionMayHold) {
  Start({.max_concurrent_streams = 7});
  RawClient client(server_->port());
  ASSERT_TRUE(client.Send(Http2Hello()));
  // MAX_CONCURRENT_STREAMS is setting 3, two bytes; its value has four.
  const std::string setting("\x00\x03\x00\x00\x00\x07", 6);
  EXPECT_TRUE(client.ReadUntil(setting).ends_with(setting));
}

TEST_F(GrpcConnectionsTest, ConnectionsOfATrustedProxyAreNotCountedAsOneClients) {
  for (const bool trusted : {false, true}) {
    SCOPED_TRACE(trusted);
    if (trusted) ASSERT_OK(state_.trusted_proxies().Add({"127.0.0.1"}));
    Start({});
    std::vector<RawClient> idle;
    for (int i = 0; i < GrpcGuard::kMaxConnectionsPerClient; ++i)
      idle.emplace_back(server_->port());
    RawClient last(server_->port());
    last.Send(Http2Hello());
    const std::string settings(1, '\4');  // the type of the frame that a server sends first
    EXPECT_EQ(last.ReadUntil(settings).ends_with(settings), trusted);
  }
}

}  // namespace
}  // namespace taopd::testing
