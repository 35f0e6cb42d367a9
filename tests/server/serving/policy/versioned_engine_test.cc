#include "server/serving/policy/versioned_engine.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>

#include <thread>

#include "tests/common/engine/result_box.h"
#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

InferenceRequest Generating() { return MakeGeneration({1, 2}, 3); }

class VersionedEngineTest : public ::testing::Test {
 protected:
  void Submit(int key) { version_->Submit(Generating(), box_.Done(key)); }

  const std::shared_ptr<FakeEngine> fake_ = std::make_shared<FakeEngine>();
  const std::shared_ptr<VersionedEngine> version_ = std::make_shared<VersionedEngine>(fake_);
  ResultBox box_;
};

TEST_F(VersionedEngineTest, ClosingWaitsForWhatWasTakenAndRefusesTheRest) {
  fake_->Hold(true);
  Submit(0);
  Submit(1);
  absl::Status closed;
  std::thread closing([&] { closed = version_->Close(/*drops=*/false, absl::InfiniteFuture()); });
  // Refused as soon as it is closing; until then the requests wait with the others.
  int key = 2;
  while (true) {
    Submit(key);
    if (box_.Has(key)) break;
    ++key;
    absl::SleepFor(absl::Milliseconds(1));  // polls: nothing tells when Close has begun
  }
  EXPECT_ERROR(box_.Wait(key), kUnavailable, "weights are being replaced");
  EXPECT_FALSE(box_.Has(0));
  fake_->Hold(false);
  closing.join();
  EXPECT_OK(closed);
  for (int i = 0; i < key; ++i) EXPECT_OK(box_.Wait(i));
  // Another version of the same engine works; this one stays closed.
  VersionedEngine next(fake_);
  next.Submit(Generating(), box_.Done(-1));
  EXPECT_OK(box_.Wait(-1));
  Submit(-2);
  EXPECT_ERROR(box_.Wait(-2), kUnavailable, "ask again");
}

TEST_F(VersionedEngineTest, DroppedRequestsEndWithAborted) {
  fake_->Hold(true);
  for (int i = 0; i < 5; ++i) Submit(i);
  ASSERT_OK(version_->Close(/*drops=*/true, absl::InfiniteFuture()));
  for (int i = 0; i < 5; ++i)
    EXPECT_ERROR(box_.Wait(i), kAborted, "dropped to replace the weights");
}

TEST_F(VersionedEngineTest, OpensAgainIfRequestsDoNotEndInTime) {
  fake_->Hold(true);
  Submit(0);
  EXPECT_ERROR(version_->Close(/*drops=*/false, absl::Now()), kDeadlineExceeded, "1 sequences");
  fake_->Hold(false);
  Submit(1);
  EXPECT_OK(box_.Wait(0));
  EXPECT_OK(box_.Wait(1));
}

// The engine cancels a request only after the step that it has begun.
TEST_F(VersionedEngineTest, DroppedRequestsThatEndTooLateEndWithAbortedAsWell) {
  absl::Notification has_begun, may_go_on;
  fake_->BeforeToken([&](size_t index) {
    if (index == 0) has_begun.Notify();
    may_go_on.WaitForNotification();
  });
  Submit(0);
  has_begun.WaitForNotification();
  Submit(1);
  EXPECT_ERROR(version_->Close(/*drops=*/true, absl::Now()), kDeadlineExceeded, "2 sequences");
  may_go_on.Notify();
  EXPECT_OK(box_.Wait(0));
  EXPECT_ERROR(box_.Wait(1), kAborted, "dropped to replace the weights");
}

TEST_F(VersionedEngineTest, ACancelledRequestIsNoAbortedOne) {
  fake_->Hold(true);
  const RequestHandle handle = version_->Submit(Generating(), box_.Done(0));
  version_->Cancel(handle);
  EXPECT_EQ(box_.Wait(0).status().code(), kCancelled);
}

}  // namespace
}  // namespace taopd::testing
