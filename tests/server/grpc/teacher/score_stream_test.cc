// When a ScoreStream may end, and what it may no longer do then.
#include "server/grpc/teacher/score_stream.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <functional>
#include <random>
#include <utility>

#include "tests/server/grpc/teacher/stepped_stream.h"

namespace taopd::testing {
namespace {

// Expects the answer to the request "one", and ends the write of it.
void ExpectOneWritten(SteppedStream& step) {
  ASSERT_NE(step.wire.writing, nullptr);
  EXPECT_EQ(step.wire.Written().request_id(), "one");
  step.EndWrite(true);
}

TEST(ScoreStreamTest, AnswersAndEnds) {
  SteppedStream step;
  step.Receive(MakeScoreRequest("one"));
  step.engine->Complete(1);
  ExpectOneWritten(step);
  step.EndReads();
  ASSERT_TRUE(step.wire.final_status.has_value());
  EXPECT_TRUE(step.wire.final_status->ok());
}

// The engine's thread hands the result over, and another one makes the message of it.
TEST(ScoreStreamTest, AnswersAreMadeOnTheDeliveryThread) {
  absl::Notification go_on, made;
  WorkerPool delivery(/*max_threads=*/1);
  SteppedStream step(&delivery);
  step.Receive(MakeScoreRequest("one"));
  delivery.Enqueue([&] { go_on.WaitForNotification(); });
  step.engine->Complete(1);
  EXPECT_EQ(step.wire.writing, nullptr);
  go_on.Notify();
  delivery.Enqueue([&] { made.Notify(); });
  made.WaitForNotification();
  ExpectOneWritten(step);
  step.EndReads();
  EXPECT_TRUE(step.wire.final_status->ok());
}

// Nobody knows which request it was: the call tells of it, after the answers that the client waits
// for.
TEST(ScoreStreamTest, MessageThatCannotBeParsedEndsTheCallAfterTheAnswers) {
  SteppedStream step;
  step.Receive(MakeScoreRequest("one"));
  step.ReceiveMalformed();
  EXPECT_EQ(step.wire.reading, nullptr);
  EXPECT_FALSE(step.wire.final_status.has_value());
  step.engine->Complete(1);
  ExpectOneWritten(step);
  ASSERT_TRUE(step.wire.final_status.has_value());
  EXPECT_EQ(step.wire.final_status->error_message(),
            "taopd.v1.ScoreRequest of 3 bytes is malformed");
  step.Done();
  EXPECT_THAT(step.metrics.Text(step.state),
              HasSubstr("code=\"INVALID_ARGUMENT\",method=\"grpc/ScoreStream\"} 1"));
}

TEST(ScoreStreamTest, MalformedMessageThatArrivesAfterTheCancellationChangesNothing) {
  SteppedStream step;
  step.Cancel();
  step.ReceiveMalformed();
  EXPECT_EQ(step.wire.final_status->error_code(), grpc::StatusCode::CANCELLED);
  step.Done();
  EXPECT_THAT(step.metrics.Text(step.state), Not(HasSubstr("INVALID_ARGUMENT")));
}

// A message may have been read before the end, and its reaction runs after it: gRPC calls OnDone as
// soon as that reaction has returned, so an answer would find no stream.
TEST(ScoreStreamTest, MessageThatArrivesAfterTheEndIsNotAccepted) {
  const auto cancel = [](SteppedStream& step) {
    step.Cancel();
    EXPECT_TRUE(step.wire.final_status.has_value());
  };
  const auto cancel_while_taken = [](SteppedStream& step) {
    step.clock.during_now = [&step] {
      step.clock.during_now = nullptr;
      step.Cancel();
    };
  };
  const auto drain = [](SteppedStream& step) {
    step.Drain();
    EXPECT_TRUE(step.wire.final_status.has_value());  // an idle stream ends at once
  };
  const std::pair<std::function<void(SteppedStream&)>, grpc::StatusCode> cases[] = {
      {cancel, grpc::StatusCode::CANCELLED},
      {cancel_while_taken, grpc::StatusCode::CANCELLED},
      {drain, grpc::StatusCode::UNAVAILABLE}};
  for (const auto& [end, code] : cases) {
    SteppedStream step;
    end(step);
    step.Receive(MakeScoreRequest());
    ASSERT_TRUE(step.wire.final_status.has_value());
    EXPECT_EQ(step.wire.final_status->error_code(), code);
    EXPECT_EQ(step.engine->num_submitted(), 0u);
    step.Done();
    for (const RequestHandle handle : step.engine->open()) step.engine->Complete(handle);
  }
}

TEST(ScoreStreamTest, CancellationDuringSubmitCancelsTheWorkAndWaitsForIt) {
  SteppedStream step;
  step.engine->during_submit = [&](RequestHandle) { step.Cancel(); };
  step.Receive(MakeScoreRequest());
  EXPECT_EQ(step.engine->cancelled, std::vector<RequestHandle>{1});
  EXPECT_FALSE(step.wire.final_status.has_value());
  step.engine->Complete(1, absl::CancelledError("cancelled"));
  EXPECT_TRUE(step.wire.final_status.has_value());
  EXPECT_EQ(step.wire.writing, nullptr);
}

TEST(ScoreStreamTest, CancellationDuringAWriteWaitsForIt) {
  SteppedStream step;
  step.Receive(MakeScoreRequest());
  step.engine->Complete(1);
  step.Cancel();
  EXPECT_FALSE(step.wire.final_status.has_value());
  step.EndWrite(false);
  EXPECT_TRUE(step.wire.final_status.has_value());
}

// The engine's thread may still be inside of the callback when gRPC is done with the call.
TEST(ScoreStreamTest, EngineThatHoldsACallbackKeepsTheStreamButNotTheModel) {
  SteppedStream step;
  const int64_t num_owners = step.model.use_count();
  step.Receive(MakeScoreRequest());
  step.engine->Complete(1);
  step.EndWrite(true);
  step.EndReads();
  step.Done();
  EXPECT_FALSE(step.watched.expired());
  EXPECT_EQ(step.model.use_count(), num_owners);  // or the engine's thread would join itself
  step.engine->ForgetCallbacks();
  EXPECT_TRUE(step.watched.expired());
}

// Every order of events that gRPC and an engine may produce, drawn at random.
class RandomEvents {
 public:
  explicit RandomEvents(uint64_t seed) : random_(seed) {
    step_.engine->during_submit = [this](RequestHandle handle) {
      if (Draw(4) == 0) step_.engine->Complete(handle);
      if (Draw(8) == 0) Cancel();
    };
    step_.clock.during_now = [this] {
      if (Draw(16) == 0) Cancel();
    };
  }

  void Run() {
    const int num_steps = 2 + static_cast<int>(Draw(30));
    for (int i = 0; i < num_steps; ++i) OneEvent();
    End();
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  void Cancel() {
    if (!is_cancelled_) step_.Cancel();
    is_cancelled_ = true;
  }
  void CompleteOne() {
    const std::vector<RequestHandle> open = step_.engine->open();
    if (open.empty()) return;
    const absl::Status status = Draw(4) == 0 ? Internal("failed") : absl::OkStatus();
    step_.engine->Complete(open[Draw(open.size())], status);
  }
  void OneEvent() {
    switch (Draw(16)) {
      case 0:
        return Cancel();
      case 1:
        return step_.Drain();
      case 2:
        if (step_.wire.reading != nullptr && Draw(4) == 0) step_.EndReads();
        return;
      case 3:
      case 4:
      case 5:
      case 6:
        return CompleteOne();
      case 7:
      case 8:
      case 9:
        if (step_.wire.writing != nullptr) step_.EndWrite(!is_cancelled_ && Draw(16) != 0);
        return;
      default:
        Receive();
    }
  }
  void Receive() {
    if (step_.wire.reading == nullptr) return;
    const bool is_over = step_.wire.final_status.has_value();
    const RequestHandle before = step_.engine->num_submitted();
    v1::ScoreRequest request = MakeScoreRequest();
    if (Draw(8) == 0) request.set_top_k(99);  // refused
    if (Draw(16) == 0) {
      step_.ReceiveMalformed();
    } else {
      step_.Receive(request);
    }
    if (is_over) {
      EXPECT_EQ(step_.engine->num_submitted(), before);
    }
  }
  // Ends the calls that are under way. Nothing may be left then.
  void End() {
    while (!step_.engine->open().empty() || step_.wire.writing != nullptr ||
           step_.wire.reading != nullptr) {
      CompleteOne();
      if (step_.wire.writing != nullptr) step_.EndWrite(!is_cancelled_);
      if (step_.wire.reading != nullptr) step_.EndReads();
    }
    step_.Done();
    step_.engine->ForgetCallbacks();
    EXPECT_TRUE(step_.watched.expired());
    EXPECT_EQ(step_.state.message_budget().num_used(), 0);
  }

  std::mt19937_64 random_;
  SteppedStream step_;
  bool is_cancelled_ = false;
};

TEST(ScoreStreamTest, EveryOrderOfEventsEndsOnce) {
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    RandomEvents(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace taopd::testing
