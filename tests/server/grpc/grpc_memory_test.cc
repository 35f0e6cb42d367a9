// No message makes the server take more memory than a few times its bytes, whatever method it is
// sent to.
#include <gmock/gmock.h>

#include <string>

#include "server/grpc/calls/message_bytes.h"
#include "tests/server/grpc/every_method.h"
#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

using google::protobuf::MethodDescriptor;

constexpr size_t kMessageBytes = 16 << 20;
// Client and server are one process: the message exists about five times. Parsed, it would take 8
// to 40 times its bytes.
constexpr int64_t kMaxGrowth = 6 * int64_t{kMessageBytes};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsPeakMeasured = false;  // sanitizers take memory of their own
#else
constexpr bool kIsPeakMeasured = true;
#endif

class GrpcMemoryTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    Ready();
    Listen({.reflection = true});
  }

  // Methods that need nothing of their request do not look at it.
  static bool ReadsItsRequest(const MethodDescriptor& method) {
    return method.input_type()->field_count() > 0 && method.name() != "GetLoads";
  }
  // Sends 16 MiB of this element of two bytes to every method.
  void SendToEveryMethod(const std::string& element) {
    std::string message;
    while (message.size() < kMessageBytes) message += element;
    for (const MethodDescriptor* method : EveryMethod()) {
      SCOPED_TRACE(method->full_name());
      ResetPeak();
      const int64_t before = StatusBytes("VmRSS");
      const auto answer = Call(PathOf(*method), message);
      if (kIsPeakMeasured) {
        EXPECT_LE(StatusBytes("VmHWM") - before, kMaxGrowth);
      }
      if (!ReadsItsRequest(*method)) {
        EXPECT_OK(answer);
        continue;
      }
      EXPECT_ERROR(answer, kInvalidArgument,
                   Concat(" of ", kMessageBytes, " bytes would take more than ", kMaxParsedBytes,
                          " bytes of memory, the limit"));
    }
  }
};

// Field 1, which is a text or a message wherever it exists.
TEST_F(GrpcMemoryTest, ManyNumbersThatNoMethodKnowsAreRefused) {
  SendToEveryMethod(std::string("\x08\0", 2));
}

// Field 14: of vllm.Inference the media, of others unknown.
TEST_F(GrpcMemoryTest, ManyEmptyTextsAndMessagesAreRefused) {
  SendToEveryMethod(std::string("\x72\0", 2));
}

TEST_F(GrpcMemoryTest, MalformedRequestsAreRefusedByName) {
  for (const MethodDescriptor* method : EveryMethod()) {
    SCOPED_TRACE(method->full_name());
    const auto answer = Call(PathOf(*method), "\x0a\x05r");
    if (!ReadsItsRequest(*method)) {
      EXPECT_OK(answer);
      continue;
    }
    EXPECT_ERROR(answer, kInvalidArgument,
                 method->input_type()->name() + " of 3 bytes is malformed");
  }
}

// protobuf would also write a line for each such text, which a client could fill a disk with.
TEST_F(GrpcMemoryTest, TextThatIsNotUtf8IsRefusedByTheNameOfItsMessageWithoutALine) {
  ::testing::internal::CaptureStderr();
  const auto answer = Call("/taopd.v1.Teacher/Score", "\x0a\x02\xff\xfe");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_ERROR(answer, kInvalidArgument, "taopd.v1.ScoreRequest of 4 bytes");
  EXPECT_ERROR(answer, kInvalidArgument, "not UTF-8");
}

// A message that is one array or one text is judged by what it says, up to the largest.
TEST_F(GrpcMemoryTest, LargeArraysAndTextsAreParsed) {
  v1::ScoreRequest score = MakeScoreRequest();
  score.mutable_token_ids()->Resize((kMaxMessageBytes - 100) / 4, 1);
  EXPECT_ERROR(Score(score), kInvalidArgument,
               Concat("token_ids has ", score.token_ids_size(), " entries"));
  score.mutable_token_ids()->Resize(6, 1);
  score.set_expected_revision(std::string(kMaxMessageBytes - 100, 'x'));
  EXPECT_EQ(Score(score).status().code(), kFailedPrecondition);
}

// Fields of a newer client do no harm.
TEST_F(GrpcMemoryTest, FewUnknownFieldsAreIgnored) {
  const std::string message =
      MakeScoreRequest().SerializeAsString() + std::string("\x70\x01\x72\x03new", 7);
  EXPECT_OK(Call("/taopd.v1.Teacher/Score", message));
}

TEST_F(GrpcMemoryTest, AnsweredAndRefusedMessagesAreCounted) {
  EXPECT_OK(Score());
  for (const char* path :
       {"/taopd.v1.Teacher/Score", "/taopd.v1.Teacher/Generate", "/vllm.Control/Abort"})
    EXPECT_EQ(Call(path, "\x0a\x05r").status().code(), kInvalidArgument);
  // A call is counted after its answer has left: the server ends when all are.
  ShutDown();
  for (const char* method : {"grpc/Score", "grpc/Generate", "grpc/vllm.Control/Abort"}) {
    EXPECT_THAT(metrics_.Text(state_),
                HasSubstr(Concat("taopd_teacher_requests_total{code=\"INVALID_ARGUMENT\",method=\"",
                                 method, "\"} 1\n")));
  }
  EXPECT_THAT(metrics_.Text(state_),
              HasSubstr("taopd_teacher_requests_total{code=\"OK\",method=\"grpc/Score\"} 1\n"));
}

}  // namespace
}  // namespace taopd::testing
