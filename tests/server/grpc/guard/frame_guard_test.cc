// Tests the frames that the guard passes on, refuses and counts, with a clock of the test.
#include "server/grpc/guard/frame_guard.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/grpc/guard/raw_http2.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kBudgetBytes = 4 << 20;
constexpr int64_t kMaxMessage = 2 << 20;
const std::string kSettingsFrame = MakeFrame(FrameType::kSettings, 0, 0);
const std::string kAck = MakeFrame(FrameType::kSettings, kAckFlag, 0);

class FrameGuardTest : public ::testing::Test {
 protected:
  FrameGuardTest() { Begin(); }
  void Reset() {
    guard_ = std::make_unique<FrameGuard>(
        FrameGuard::Limits{.max_streams = 8, .max_message_bytes = kMaxMessage},
        MemoryAccount(&budget_, "client"), &resets_,
        [this](const absl::Status& why) { refusals_.push_back(why); }, now_);
    to_server_.clear();
    to_client_.clear();
  }
  absl::Status FromClient(const std::string& bytes) {
    return guard_->FromClient(bytes, now_, &to_server_);
  }
  absl::Status FromServer(const std::string& bytes) {
    return guard_->FromServer(bytes, now_, &to_client_);
  }
  absl::Status CheckDeadlines() { return guard_->CheckDeadlines(now_, &to_server_); }
  // Begins a connection anew.
  void Begin() {
    Reset();
    ASSERT_OK(FromClient(kHttp2Preface + kSettingsFrame));
  }
  static std::string Headers(uint32_t stream) {
    return MakeFrame(FrameType::kHeaders, kEndHeadersFlag, stream, GrpcHeaders());
  }
  // A message in frames of the largest size.
  static std::string Message(uint32_t stream, uint32_t announced, size_t size) {
    const std::string bytes = MessagePrefix(announced) + std::string(size, 'x');
    std::string frames;
    for (size_t at = 0; at < bytes.size(); at += FrameGuard::kMaxFrameBytes) {
      frames +=
          MakeFrame(FrameType::kData, 0, stream, bytes.substr(at, FrameGuard::kMaxFrameBytes));
    }
    return frames;
  }
  static std::string Trailers(uint32_t stream) {
    return MakeFrame(FrameType::kHeaders, kEndHeadersFlag | kEndStreamFlag, stream, "\x88");
  }
  static std::string Window(uint32_t stream, uint32_t size) {
    return MakeFrame(FrameType::kWindowUpdate, 0, stream, MessagePrefix(size).substr(1));
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  ByteBudget budget_{kBudgetBytes};
  ResetRate resets_;
  std::vector<absl::Status> refusals_;
  std::unique_ptr<FrameGuard> guard_;
  std::string to_server_, to_client_;
};

// However the bytes are cut.
TEST_F(FrameGuardTest, AGoodConnectionPassesUnchanged) {
  const std::string request = kHttp2Preface + kSettingsFrame + Headers(1) +
                              Message(1, 100'000, 100'000) + Headers(3) +
                              MakeFrame(FrameType::kPing, 0, 0, "12345678");
  const std::string answer = kSettingsFrame + kAck + Window(1, 70'000) + Trailers(1) +
                             MakeFrame(FrameType::kPing, kAckFlag, 0, "12345678") + Trailers(3);
  for (const size_t part : {size_t{1}, size_t{7}, size_t{5000}, request.size()}) {
    Reset();
    for (size_t at = 0; at < request.size(); at += part) {
      ASSERT_OK(FromClient(request.substr(at, part)));
    }
    for (size_t at = 0; at < answer.size(); at += part) {
      ASSERT_OK(FromServer(answer.substr(at, part)));
    }
    EXPECT_EQ(to_server_, request);
    EXPECT_EQ(to_client_, answer);
    EXPECT_EQ(budget_.num_used(), 0);
  }
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(FrameGuardTest, HeaderBlocksAreBoundedInBytesAndFrames) {
  const std::string part(FrameGuard::kMaxFrameBytes, 'x');
  EXPECT_OK(FromClient(MakeFrame(FrameType::kHeaders, 0, 1, part) +
                       MakeFrame(FrameType::kContinuation, 0, 1, part) +
                       MakeFrame(FrameType::kContinuation, 0, 1, part) +
                       MakeFrame(FrameType::kContinuation, kEndHeadersFlag, 1, part)));
  EXPECT_OK(FromClient(MakeFrame(FrameType::kHeaders, 0, 3, part)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(FromClient(MakeFrame(FrameType::kContinuation, 0, 3, part)));
  }
  EXPECT_ERROR(FromClient(MakeFrame(FrameType::kContinuation, 0, 3, "x")), kResourceExhausted,
               "65537 bytes");
  Begin();
  EXPECT_OK(FromClient(MakeFrame(FrameType::kHeaders, 0, 1)));
  for (int i = 1; i < FrameGuard::kMaxHeaderFrames; ++i) {
    EXPECT_OK(FromClient(MakeFrame(FrameType::kContinuation, 0, 1)));
  }
  EXPECT_ERROR(FromClient(MakeFrame(FrameType::kContinuation, 0, 1)), kResourceExhausted,
               "65 frames");
}

TEST_F(FrameGuardTest, NothingComesBetweenThePartsOfAHeaderBlock) {
  for (const std::string& other :
       {kSettingsFrame, Headers(1), MakeFrame(FrameType::kContinuation, 0, 3)}) {
    Begin();
    EXPECT_OK(FromClient(MakeFrame(FrameType::kHeaders, 0, 1, "x")));
    EXPECT_ERROR(FromClient(other), kInvalidArgument, "header block");
  }
  Begin();
  EXPECT_ERROR(FromClient(MakeFrame(FrameType::kContinuation, 0, 1)), kInvalidArgument,
               "header block");
}

TEST_F(FrameGuardTest, NonsenseAndLargeFramesNeverReachTheServer) {
  Reset();
  EXPECT_ERROR(FromClient("GET / HTTP/1.1\r\n"), kInvalidArgument, "preface");
  EXPECT_EQ(to_server_, "");
  Begin();
  EXPECT_ERROR(FromClient(MakeFrame(FrameType::kSettings, 0, 0, std::string(16385, 'x'))),
               kInvalidArgument, "16385 bytes");
  EXPECT_EQ(to_server_, kHttp2Preface + kSettingsFrame);
}

TEST_F(FrameGuardTest, StreamsAreBounded) {
  for (uint32_t stream = 1; stream < 17; stream += 2) EXPECT_OK(FromClient(Headers(stream)));
  EXPECT_OK(FromServer(Trailers(5)));
  EXPECT_OK(FromClient(Headers(17)));
  EXPECT_ERROR(FromClient(Headers(19)), kResourceExhausted, "8 open streams");
}

// The refusal reaches the client after all frames that the server has sent on the stream.
TEST_F(FrameGuardTest, AMessageBeyondTheBudgetIsRefusedAlone) {
  EXPECT_OK(FromServer(kAck));
  EXPECT_OK(FromClient(Headers(1) + Message(1, kMaxMessage, kMaxMessage - 1)));
  EXPECT_GE(budget_.num_used(), kMaxMessage - MemoryAccount::kFreeBytes);
  EXPECT_LE(budget_.num_used(), kMaxMessage + 2 * MemoryAccount::kPieceBytes);
  EXPECT_OK(FromClient(Headers(3) + Message(3, kMaxMessage, kMaxMessage - 1)));
  EXPECT_TRUE(refusals_.empty());
  EXPECT_OK(FromClient(Headers(5) + Message(5, kMaxMessage, kMaxMessage - 1)));
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].code(), kResourceExhausted);
  EXPECT_LE(budget_.num_used(), kBudgetBytes);
  EXPECT_THAT(to_server_,
              HasSubstr(MakeFrame(FrameType::kResetStream, 0, 5, std::string("\0\0\0\x08", 4)) +
                        kSettingsFrame));
  to_client_.clear();
  const std::string said = MakeFrame(FrameType::kHeaders, kEndHeadersFlag, 5, "\x88") +
                           MakeFrame(FrameType::kData, 0, 5);
  EXPECT_OK(FromServer(said));
  EXPECT_EQ(to_client_, said);
  EXPECT_OK(FromServer(kAck + Trailers(1)));
  EXPECT_THAT(to_client_, StartsWith(said));
  EXPECT_THAT(to_client_, HasSubstr("grpc-status\x01"
                                    "8"));
  EXPECT_THAT(to_client_, HasSubstr("max_message_memory_bytes"));
  EXPECT_THAT(to_client_, Not(HasSubstr("application/grpc")));  // it has had headers
  EXPECT_THAT(to_client_, Not(HasSubstr(kAck)));
  EXPECT_THAT(to_client_, ::testing::EndsWith(Trailers(1)));
  EXPECT_OK(FromClient(MakeFrame(FrameType::kResetStream, 0, 3, "\0\0\0\0")));
  EXPECT_EQ(budget_.num_used(), 0);
}

TEST_F(FrameGuardTest, ACallThatTheServerEndsBeforeItsRefusalHasOneStatus) {
  EXPECT_OK(FromServer(kAck));
  EXPECT_OK(FromClient(Headers(1) + Message(1, kMaxMessage + 1, 0)));
  ASSERT_EQ(refusals_.size(), 1u);
  to_client_.clear();
  EXPECT_OK(FromServer(Trailers(1) + kAck));
  EXPECT_EQ(to_client_, Trailers(1));
}

TEST_F(FrameGuardTest, TooLargeAMessageIsRefusedByItsPrefix) {
  EXPECT_OK(FromServer(kAck));
  EXPECT_OK(
      FromClient(Headers(1) + Message(1, kMaxMessage, 0) + Headers(3) + Message(3, 0xffffffff, 0)));
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_THAT(std::string(refusals_[0].message()), HasSubstr("4294967295 bytes"));
  EXPECT_OK(FromServer(kAck));
  EXPECT_THAT(to_client_, HasSubstr("application/grpc"));
}

// The messages of a stream count one at a time, and those that gRPC has not read by the window.
TEST_F(FrameGuardTest, AMessageCountsUntilTheNextOneBegins) {
  EXPECT_OK(FromClient(Headers(1)));
  for (int i = 0; i < 10; ++i) {
    EXPECT_OK(FromClient(Message(1, 1 << 20, 1 << 20)));
    EXPECT_OK(FromServer(Window(1, (1 << 20) + 5)));
    EXPECT_GT(budget_.num_used(), (1 << 20) - MemoryAccount::kFreeBytes);
  }
  EXPECT_OK(FromClient(Message(1, 1, 1)));
  EXPECT_LE(budget_.num_used(), MemoryAccount::kPieceBytes);
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(FrameGuardTest, SmallMessagesThatTheServerDoesNotReadCount) {
  int64_t num_unread = 0;
  for (uint32_t stream = 1; stream < 17; stream += 2) {
    EXPECT_OK(FromClient(Headers(stream)));
    for (int i = 0; i < 600; ++i, num_unread += 105) {
      EXPECT_OK(FromClient(Message(stream, 100, 100)));
    }
  }
  EXPECT_GE(budget_.num_used(), num_unread);
}

TEST_F(FrameGuardTest, AStalledMessageIsRefusedUnlessTheServerHoldsItBack) {
  EXPECT_OK(FromServer(kAck));
  EXPECT_OK(FromClient(Headers(1) + Message(1, 1 << 20, FrameGuard::kInitialWindowBytes - 5)));
  EXPECT_OK(FromClient(Headers(3) + Message(3, 100, 99) + Headers(5) + Message(5, 100, 100)));
  now_ += FrameGuard::kMessageTimeout;
  EXPECT_OK(CheckDeadlines());
  EXPECT_TRUE(refusals_.empty());
  now_ += absl::Seconds(10);
  EXPECT_OK(CheckDeadlines());
  ASSERT_EQ(refusals_.size(), 1u);  // of stream 3
  EXPECT_EQ(refusals_[0].code(), kDeadlineExceeded);
  now_ += absl::Hours(1);
  EXPECT_OK(CheckDeadlines());
  EXPECT_EQ(refusals_.size(), 1u);
  EXPECT_OK(FromServer(Window(1, 1 << 20)));
  now_ += FrameGuard::kMessageTimeout;
  EXPECT_OK(CheckDeadlines());
  EXPECT_EQ(refusals_.size(), 1u);
  now_ += absl::Seconds(1);
  EXPECT_OK(CheckDeadlines());
  EXPECT_EQ(refusals_.size(), 2u);
}

TEST_F(FrameGuardTest, PrefacesFramesAndHeaderBlocksEndInTime) {
  for (const std::string& begun :
       {std::string(), std::string("PRI"), kHttp2Preface + std::string(1, '\0'),
        kHttp2Preface + kSettingsFrame + Headers(1) + Message(1, 9, 9).substr(0, 15),
        kHttp2Preface + MakeFrame(FrameType::kHeaders, 0, 1, "x")}) {
    Reset();
    EXPECT_OK(FromClient(begun));
    now_ += FrameGuard::kFrameTimeout;
    EXPECT_OK(CheckDeadlines());
    now_ += absl::Milliseconds(1);
    EXPECT_ERROR(CheckDeadlines(), kResourceExhausted, "10s");
  }
  Begin();
  now_ += absl::Hours(1);
  EXPECT_OK(CheckDeadlines());
}

TEST_F(FrameGuardTest, ResetsAreBoundedWhoeverSendsThem) {
  const std::string code("\0\0\0\x08", 4);
  for (const bool by_server : {false, true}) {
    resets_ = ResetRate();
    Begin();
    uint32_t stream = 1;
    const auto reset = [&] {
      const absl::Status opened = FromClient(Headers(stream));
      const std::string frame = MakeFrame(FrameType::kResetStream, 0, stream, code);
      stream += 2;
      return by_server ? FromServer(frame) : FromClient(frame);
    };
    for (int i = 0; i < ResetRate::kBurst; ++i) ASSERT_OK(reset());
    EXPECT_ERROR(reset(), kResourceExhausted, "streams reset");
    now_ += absl::Seconds(1);
    EXPECT_OK(reset());
  }
}

TEST_F(FrameGuardTest, UnreadAnswersAreBounded) {
  for (const std::string& frame : {kSettingsFrame, MakeFrame(FrameType::kPing, 0, 0, "12345678")}) {
    Begin();
    EXPECT_OK(FromServer(kAck));
    for (int i = 0; i < FrameGuard::kMaxUnreadAnswers; ++i) ASSERT_OK(FromClient(frame));
    EXPECT_ERROR(FromClient(frame), kResourceExhausted, "unread");
  }
}

TEST_F(FrameGuardTest, SaysGoodbyeBetweenFramesAlone) {
  Reset();
  const absl::Status why = absl::ResourceExhaustedError("too much");
  EXPECT_THAT(guard_->GoAway(why), HasSubstr("too much"));
  EXPECT_OK(FromServer(Trailers(1).substr(0, 9)));
  EXPECT_EQ(guard_->GoAway(why), "");
}

}  // namespace
}  // namespace taopd::testing
