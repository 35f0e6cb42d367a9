// Tests of the real taopd-teacher with clients that send nonsense, incomplete requests and floods.
#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/server/http/hostile_requests.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMaxGrowthBytes = 50 << 20;
// Freed memory is returned to the system within a second or two.
constexpr absl::Duration kMaxReturnTime = absl::Seconds(30);
constexpr size_t kMaxAnswerBytes = 2000;                    // limit for a refusal
constexpr absl::Duration kMaxProbeTime = absl::Seconds(5);  // as other programs run beside it

class HostileHttpTest : public TeacherBinaryFixture {
 protected:
  std::string Ask(const std::string& request) { return AskRaw(teacher_->http_port(), request); }
  void ExpectAlive() {
    const absl::Time before = absl::Now();
    EXPECT_THAT(Ask("GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
                StartsWith("HTTP/1.1 200"));
    EXPECT_LT(absl::Now() - before, kMaxProbeTime);
  }
  void ExpectServes() {
    BodyOf(Complete({{"prompt", {1, 403, 407}}, {"max_tokens", 2}}));
    EXPECT_OK(Score(MakeRequest({1, 403, 407}, 1, 2)));
  }
};

// Expects exactly one answer with the status, which announces the end of the connection, and then
// that end.
void CheckRefusal(int port, const HostileRequest& request) {
  SCOPED_TRACE(request.name);
  const std::string answer = AskRaw(port, request.bytes + kSmuggled);
  const size_t head_end = answer.find("\r\n\r\n");
  ASSERT_NE(head_end, std::string::npos) << "no answer";
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(request.status) + " "));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_LT(answer.size(), kMaxAnswerBytes);
  const size_t length_at = answer.find("Content-Length: ");
  ASSERT_LT(length_at, head_end);
  const size_t length = std::stoul(answer.substr(length_at + 16));
  EXPECT_EQ(answer.size(), head_end + 4 + length) << "more than one answer: " << answer;
  if (request.bytes.find("\r\n\r\n") != std::string::npos && length > 0 &&
      !answer.substr(head_end + 4).starts_with("{")) {
    ADD_FAILURE() << "the body is no JSON: " << answer;
  }
}

TEST_F(HostileHttpTest, EveryRequestOfTheCorpusIsRefusedOnce) {
  Start();
  ExpectServes();
  ExpectAlive();
  const int64_t before = ResidentBytes();
  std::set<std::string> names;
  for (const auto& requests : {HostileRequestLines(), HostileHeaders(), HostileLengths(),
                               HostileChunks(), HostileRoutes(), HostileBodies()}) {
    for (const HostileRequest& request : requests) {
      CheckRefusal(teacher_->http_port(), request);
      EXPECT_TRUE(names.insert(request.name).second) << "twice: " << request.name;
    }
  }
  EXPECT_GE(names.size(), 150u);
  ExpectAlive();
  ExpectServes();
  EXPECT_TRUE(PollUntil(kMaxReturnTime, [&] { return ResidentBytes() - before < kMaxGrowthBytes; }))
      << before << " " << ResidentBytes();
}

// Many threads parse large bodies that are then refused. The freed memory must return to the system
// after each round.
TEST_F(HostileHttpTest, MemoryOfRefusedBodiesIsReturned) {
  constexpr int kNumConnections = 24, kNumRounds = 2;
  constexpr int64_t kMaxLeftBytes = 20 << 20;
  Start();
  ExpectServes();
  const int64_t before = ResidentBytes();
  for (int round = 0; round < kNumRounds; ++round) {
    std::vector<std::thread> clients;
    for (int i = 0; i < kNumConnections; ++i) {
      clients.emplace_back([this, i] {
        const std::string body = "{\"prompt\":[7" + Repeated(",7", 150'000 + i * 37'000) + "]}";
        EXPECT_THAT(Ask(ClosingPost(body)), StartsWith("HTTP/1.1 400 "));
      });
    }
    for (std::thread& client : clients) client.join();
  }
  EXPECT_TRUE(PollUntil(kMaxReturnTime, [&] { return ResidentBytes() - before < kMaxLeftBytes; }))
      << before << " " << ResidentBytes();
}

TEST_F(HostileHttpTest, HalfSentRequestsHoldNothingThatOthersNeed) {
  Start();
  const std::string body(64 << 10, ' ');
  for (const std::string& half :
       {std::string("GET /health HTTP/1.1\r\nHost: a\r\nA: "),
        PostHead("Content-Length: 33554432\r\n") + body, ChunkedBody("2000000\r\n") + body}) {
    const std::vector<RawClient> clients = ConnectMany(teacher_->http_port(), 500, half);
    ExpectAlive();
    ExpectServes();
    ExpectAlive();
  }
}

TEST_F(HostileHttpTest, WaitingCompletionsDoNotDelayProbes) {
  Start();
  const std::string body = "{\"prompt\":[1],\"max_tokens\":400,\"ignore_eos\":true}";
  {
    const auto waiting = ConnectMany(teacher_->http_port(), 300, WholePost(body));
    const auto half =
        ConnectMany(teacher_->http_port(), 700, "GET /health HTTP/1.1\r\nHost: a\r\nA: ");
    for (int i = 0; i < 5; ++i) ExpectAlive();
  }  // cancels them
  ExpectServes();
}

// Parsing makes a body fifty times as large. One client sends such bodies over many connections,
// and another one asks a short question.
TEST_F(HostileHttpTest, BodiesThatGrowLeaveMemoryAndTurnsToOthers) {
  constexpr int kNumConnections = 6, kNumObjects = 2'500'000;
  constexpr int64_t kMaxBytes = int64_t{3} << 29;
  constexpr int kMinServed = 10;
  Start();
  ExpectServes();
  const std::string body =
      "{\"prompt\":[1],\"x\":[{\"\":0}" + Repeated(",{\"\":0}", kNumObjects) + "]}";
  const std::string request = ClosingPost(body);
  std::atomic<int> num_left = kNumConnections;
  std::vector<std::thread> flood;
  for (int i = 0; i < kNumConnections; ++i) {
    flood.emplace_back([&] {
      const std::string answer = Ask(request);
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 400"));
      EXPECT_THAT(answer, HasSubstr("bytes of memory"));
      --num_left;
    });
  }
  const std::string question = "{\"prompt\":[1],\"max_tokens\":1}";
  int num_served = 0;
  int64_t most_bytes = 0;
  while (num_left > 0) {
    EXPECT_THAT(AskRaw(teacher_->http_port(), ClosingPost(question), "127.0.0.2"),
                StartsWith("HTTP/1.1 200"));
    ++num_served;
    most_bytes = std::max(most_bytes, ResidentBytes());
    ExpectAlive();
  }
  for (std::thread& thread : flood) thread.join();
  EXPECT_LT(most_bytes, kMaxBytes);
  EXPECT_GE(num_served, kMinServed);
}

// The teacher has 64 descriptors and gets more connections than that on both ports.
TEST_F(HostileHttpTest, RecoversFromAFloodWithFewDescriptors) {
  descriptors_ = 64;
  Start();
  ExpectServes();
  for (const int port : {teacher_->http_port(), teacher_->grpc_port()}) {
    ConnectMany(port, 200, "G");
    stub_ = Connect(*teacher_);
    ExpectServes();
    ExpectAlive();
  }
}

TEST_F(HostileHttpTest, AFloodOfOneProtocolLeavesTheOther) {
  descriptors_ = 96;
  Start();
  std::vector<RawClient> flood = ConnectMany(teacher_->http_port(), 200, "");
  EXPECT_EQ(flood.front().ReadAll(), "");  // closed to make room for later ones
  stub_ = Connect(*teacher_);
  ExpectServes();
  flood.clear();
  flood = ConnectMany(teacher_->grpc_port(), 200, "");
  // Connections are accepted in order, so once the last one has ended, all have been accepted. It
  // ends immediately, or after the time limit of its first frame if the HTTP connections left room.
  flood.back().ReadAll();
  ExpectAlive();
}

TEST_F(HostileHttpTest, DeadlineOfARequestIsKept) {
  Start();
  const std::string body = "{\"prompt\":[1],\"max_tokens\":500,\"ignore_eos\":true,\"n\":64}";
  const std::string answer = Ask(ClosingPost(body, "X-Request-Timeout: 0.05\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 504"));
}

}  // namespace
}  // namespace taopd::testing
