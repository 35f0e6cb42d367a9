#include "trainer/eval/evaluation_thread.h"

#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

EvalResult ResultOf(double value) { return {.metrics = {{"eval/x", value}}}; }

// Fails the test instead of hanging it.
constexpr absl::Duration kLong = absl::Seconds(60);

TEST(EvaluationThread, IsReadyWhenTheEvaluationHasEnded) {
  absl::Notification may_end;
  EvaluationThread evaluation([&](const auto&, const auto&) -> absl::StatusOr<EvalResult> {
    may_end.WaitForNotification();
    return ResultOf(3);
  });
  EXPECT_FALSE(evaluation.IsReady());
  may_end.Notify();
  ASSERT_TRUE(evaluation.IsReady(kLong));
  ASSERT_OK_AND_ASSIGN(const EvalResult result, evaluation.Take(nullptr));
  EXPECT_EQ(result.metrics[0].second, 3);
}

TEST(EvaluationThread, ExchangesOnTheThreadOfTheCaller) {
  EvaluationThread evaluation([](const auto& exchange, const auto&) -> absl::StatusOr<EvalResult> {
    const auto all = exchange(std::string("mine"));
    if (!all.ok()) return all.status();
    return ResultOf(static_cast<double>(all->size()));
  });
  ASSERT_TRUE(evaluation.IsReady(kLong));
  const auto caller = std::this_thread::get_id();
  std::vector<std::string> given;
  ASSERT_OK_AND_ASSIGN(
      const EvalResult result,
      evaluation.Take(
          [&](const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
            EXPECT_EQ(std::this_thread::get_id(), caller);
            given.push_back(mine.value_or("an error"));
            return std::vector<std::string>{"a", "b", "c"};
          }));
  EXPECT_THAT(given, ElementsAre("mine"));
  EXPECT_EQ(result.metrics[0].second, 3);
}

// The other ranks wait in the exchange, so a rank that fails before it must take part as well.
TEST(EvaluationThread, AFailureBeforeTheExchangeReachesTheOtherRanks) {
  EvaluationThread evaluation([](const auto&, const auto&) -> absl::StatusOr<EvalResult> {
    return absl::DataLossError("broken");
  });
  ASSERT_TRUE(evaluation.IsReady(kLong));
  absl::Status given;
  const auto result = evaluation.Take(
      [&](const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
        given = mine.status();
        return given;
      });
  EXPECT_TRUE(absl::IsDataLoss(given)) << given;
  EXPECT_TRUE(absl::IsDataLoss(result.status())) << result.status();
}

TEST(EvaluationThread, AFailureOfTheExchangeIsTheResult) {
  EvaluationThread evaluation([](const auto& exchange, const auto&) -> absl::StatusOr<EvalResult> {
    const auto all = exchange(std::string("mine"));
    return all.ok() ? absl::StatusOr<EvalResult>(ResultOf(1)) : all.status();
  });
  ASSERT_TRUE(evaluation.IsReady(kLong));
  const auto result = evaluation.Take([](const auto&) -> absl::StatusOr<std::vector<std::string>> {
    return absl::UnavailableError("rank 1 has died");
  });
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
}

TEST(EvaluationThread, CancelEndsTheWaitOfTheEvaluation) {
  EvaluationThread evaluation([](const auto&, const auto& on_wait) -> absl::StatusOr<EvalResult> {
    while (true) {
      if (const absl::Status status = on_wait(); !status.ok()) return status;
      std::this_thread::yield();
    }
  });
  EXPECT_FALSE(evaluation.IsReady());
  evaluation.Cancel(absl::CancelledError("asked to stop"));
  evaluation.Cancel(absl::InternalError("the first reason counts"));
  ASSERT_TRUE(evaluation.IsReady(kLong));
  EXPECT_EQ(evaluation.Take(nullptr).status(), absl::CancelledError("asked to stop"));
}

TEST(EvaluationThread, TheDestructorEndsAnEvaluationThatWaitsForTheExchange) {
  absl::Status seen;
  {
    EvaluationThread evaluation([&](const auto& exchange, const auto&) {
      seen = exchange(std::string("mine")).status();
      return absl::StatusOr<EvalResult>(seen);
    });
    ASSERT_TRUE(evaluation.IsReady(kLong));
  }
  EXPECT_TRUE(absl::IsCancelled(seen)) << seen;
}

}  // namespace
}  // namespace taopd::testing
