// Tests of the real taopd-teacher with clients that misuse HTTP/2: endless header blocks, messages
// that are held back, streams that are reset. Meanwhile another client's calls on new connections
// are answered soon, probes get 200, and the memory is bounded.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/server/grpc/guard/raw_http2.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;
// The growth of resident memory that a flood may cause besides the budget of messages.
constexpr int64_t kMaxGrowthBytes = 96 * kMiB;
constexpr absl::Duration kMaxCallTime = absl::Seconds(5);
constexpr int64_t kEnhanceYourCalm = 0xb, kProtocolError = 0x1;  // RFC 9113, section 7
constexpr uint8_t kPaddedFlag = 0x8, kPriorityFlag = 0x20;
constexpr uint32_t kMessageBytes = 60 * kMiB;
constexpr size_t kPartBytes = 55 * kMiB;

// Returns how long a flood lasts that has no end by itself: 300 ms, or TAOPD_FLOOD_MS (the ctest
// entry with the label slow sets 3000).
absl::Duration FloodTime() {
  return absl::Milliseconds(NumberFromEnvironment("TAOPD_FLOOD_MS", 300));
}

class HostileGrpcTest : public TeacherBinaryFixture {
 protected:
  // Makes a call on a new connection, and a probe.
  void ExpectServes(const std::string& key = "") {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kMaxCallTime));
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    v1::ScoreResponse response;
    EXPECT_OK(Connect(*teacher_)->Score(&context, MakeRequest({1, 403, 407}, 1, 2), &response));
    BodyOf(httplib::Client("127.0.0.1", teacher_->http_port()).Get("/health"));
  }
  // Runs `attack` on `num_threads` threads while calls are served. Returns the growth of the
  // memory.
  int64_t GrowthUnder(int num_threads, const std::function<void()>& attack) {
    ExpectServes();
    const int64_t before = ResidentBytes();
    std::atomic<int> num_running{num_threads};
    std::vector<std::thread> attackers;
    for (int i = 0; i < num_threads; ++i) {
      attackers.emplace_back([&] {
        attack();
        --num_running;
      });
    }
    int64_t most = before;
    do {
      ExpectServes();
      most = std::max(most, ResidentBytes());
    } while (num_running > 0);
    for (std::thread& attacker : attackers) attacker.join();
    ExpectServes();
    return std::max(most, ResidentBytes()) - before;
  }
};

struct HeaderFlood {
  const char* name;
  uint8_t flags;      // of HEADERS
  size_t part_bytes;  // size of each CONTINUATION
  int num_connections;
};

TEST_F(HostileGrpcTest, HeaderBlocksWithoutEndEndTheirConnection) {
  Start();
  for (const HeaderFlood& flood : {HeaderFlood{"one", 0, 16 << 10, 1},
                                   {"six", 0, 16 << 10, 6},
                                   {"many", 0, 16 << 10, 16},
                                   {"small continuations", 0, 1, 6},
                                   {"empty continuations", 0, 0, 6},
                                   {"padded", kPaddedFlag, 16 << 10, 6},
                                   {"with priority", kPriorityFlag, 16 << 10, 6}}) {
    SCOPED_TRACE(flood.name);
    const std::string rest =
        MakeFrame(FrameType::kContinuation, 0, 1, std::string(flood.part_bytes, 'x'));
    // The beginning of a name of 16 MiB.
    const std::string begin =
        std::string(5, '\0') + GrpcHeaders() + std::string("\0\x7f\x81\xff\xff\x07", 6);
    const int64_t growth = GrowthUnder(flood.num_connections, [&] {
      RawHttp2 client(teacher_->grpc_port());
      client.Send(MakeFrame(FrameType::kHeaders, flood.flags, 1, begin));
      for (int64_t sent = 0; sent < 16 * kMiB && client.Send(rest);) {
        sent += static_cast<int64_t>(rest.size());
      }
      EXPECT_EQ(client.ReadGoAway(), kEnhanceYourCalm);
    });
    EXPECT_LT(growth, kMaxGrowthBytes);
  }
}

// The messages are on many connections, and on many streams of one connection.
TEST_F(HostileGrpcTest, MessagesThatAreHeldBackStayWithinTheBudget) {
  constexpr int64_t kBudgetBytes = 128 * kMiB;
  Start({"--max-message-memory-bytes", std::to_string(kBudgetBytes)});
  for (const auto& [num_clients, num_streams] : {std::pair{12, 1}, {1, 12}}) {
    std::vector<std::unique_ptr<RawHttp2>> clients;
    for (int i = 0; i < num_clients; ++i) {
      clients.push_back(std::make_unique<RawHttp2>(teacher_->grpc_port()));
    }
    const int64_t before = ResidentBytes();
    int num_refused = 0;
    for (int i = 0; i < num_streams; ++i) {
      const auto stream = static_cast<uint32_t>(2 * i + 1);
      for (const auto& client : clients) {
        client->Open(stream);
        if (client->SendPartOfMessage(stream, kMessageBytes, kPartBytes)) continue;
        ++num_refused;
      }
    }
    EXPECT_GE(num_refused, 10);
    EXPECT_LT(ResidentBytes() - before, kBudgetBytes + kMaxGrowthBytes);
    ExpectServes();
  }
}

TEST_F(HostileGrpcTest, ARefusedMessageLeavesTheOtherCallsOfItsConnection) {
  Start({"--max-message-memory-bytes", std::to_string(128 * kMiB)});
  RawHttp2 client(teacher_->grpc_port());
  client.Open(1);
  EXPECT_TRUE(client.SendPartOfMessage(1, kMessageBytes, kPartBytes));
  client.Open(3);
  EXPECT_FALSE(client.SendPartOfMessage(3, kMessageBytes, kPartBytes));
  client.Open(5, GrpcHeaders("/grpc.health.v1.Health/Check"));
  client.Send(MakeFrame(FrameType::kData, kEndStreamFlag, 5, MessagePrefix(0)));
  EXPECT_NE(client.ReadTrailers(5), "");
}

TEST_F(HostileGrpcTest, WithoutAKeyNoMessageIsHeld) {
  Start({"--api-key", "the-key"});
  ExpectServes("the-key");
  const int64_t before = ResidentBytes();
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<RawHttp2>(teacher_->grpc_port()));
    clients.back()->Open(1);
    // The headers suffice for the refusal: no byte of the message is needed.
    EXPECT_THAT(clients.back()->ReadTrailers(1), HasSubstr("16"));
    clients.back()->Open(3, GrpcHeaders(kScorePath, "another"));
    EXPECT_FALSE(clients.back()->SendPartOfMessage(3, kMessageBytes, kPartBytes));
  }
  EXPECT_LT(ResidentBytes() - before, 32 * kMiB);
  ExpectServes("the-key");
  // A call is counted after its answer has left.
  const char* const count = "{code=\"UNAUTHENTICATED\",method=\"grpc/Score\"} 24\n";
  EXPECT_TRUE(PollUntil(absl::Seconds(20), [&] {
    return http_->Get("/metrics")->body.find(count) != std::string::npos;
  })) << http_->Get("/metrics")->body;
}

TEST_F(HostileGrpcTest, StreamsThatAreResetTakeLittleMemory) {
  Start();
  const int64_t growth = GrowthUnder(4, [&] {
    for (const absl::Time end = absl::Now() + FloodTime(); absl::Now() < end;) {
      RawHttp2 client(teacher_->grpc_port());
      uint32_t stream = 1;
      for (bool open = true; open && absl::Now() < end;) {
        std::string bytes;
        for (int i = 0; i < 500; ++i, stream += 2) {
          bytes += MakeFrame(FrameType::kHeaders, kEndHeadersFlag, stream, GrpcHeaders()) +
                   MakeFrame(FrameType::kResetStream, 0, stream, std::string("\0\0\0\x08", 4));
        }
        open = client.Send(bytes);
      }
    }
  });
  EXPECT_LT(growth, 2 * kMaxGrowthBytes);  // 4,096 streams of 28 KiB, and those opened meanwhile
}

TEST_F(HostileGrpcTest, AnswersThatAreNotReadAreBounded) {
  Start();
  const std::string ping = MakeFrame(FrameType::kPing, 0, 0, "12345678");
  const std::string settings = MakeFrame(FrameType::kSettings, 0, 0);
  for (const std::string& frame : {ping, settings}) {
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += frame;
    const int64_t growth = GrowthUnder(4, [&] {
      RawHttp2 client(teacher_->grpc_port());
      for (const absl::Time end = absl::Now() + FloodTime(); absl::Now() < end;) {
        if (!client.Send(bytes)) break;
      }
    });
    EXPECT_LT(growth, kMaxGrowthBytes);
  }
}

TEST_F(HostileGrpcTest, ConnectionsThatSayNothingOrNonsenseTakeNothing) {
  Start();
  std::vector<RawClient> silent;
  const int64_t growth = GrowthUnder(1, [&] {
    for (int i = 0; i < 300; ++i) {
      silent.emplace_back(teacher_->grpc_port());
      if (i % 2 == 0) silent.back().Send("PRI * HTTP/2.0\r\n");
    }
  });
  EXPECT_LT(growth, 8 * kMiB);
  for (const std::string& nonsense :
       {std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), std::string(1 << 20, '\0'),
        std::string("\x16\x03\x01\x02\x00\x01\x00", 7)}) {
    EXPECT_LT(AskRaw(teacher_->grpc_port(), nonsense).size(), 200u);
  }
  // The frame is larger than the server's limit.
  RawHttp2 client(teacher_->grpc_port());
  client.Send(MakeFrame(FrameType::kSettings, 0, 0, std::string(1 << 20, '\0')));
  EXPECT_EQ(client.ReadGoAway(), kProtocolError);
  ExpectServes();
}

}  // namespace
}  // namespace taopd::testing
