#include "server/generation/engine_run.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

InferenceRequest Generating() { return MakeGeneration({3, 5, 7}, 2); }

// Writes down what a run tells of, and on which threads.
struct Diary {
  EngineEvents Events() {
    return {.on_update =
                [this](const ChoiceUpdate& update) {
                  Note(Concat("token ", update.choice, update.is_last ? ", the last" : ""));
                },
            .on_result = [this](size_t choice,
                                const InferenceResult&) { Note(Concat("result ", choice)); },
            .on_end = [this](const absl::Status& status) { Note(std::string(status.message())); }};
  }
  void Note(std::string event) {
    events.push_back(std::move(event));
    threads.push_back(std::this_thread::get_id());
  }

  std::vector<std::string> events;
  std::vector<std::thread::id> threads;
};

// The engine ends all sequences while the delivery thread stands still, and no event runs.
TEST(EngineRunTest, TheEngineOnlyHandsOver) {
  FakeModel fake = MakeFakeModel();
  Diary diary;
  std::thread::id delivery_id;
  {
    absl::Notification go_on;
    WorkerPool delivery(/*max_threads=*/1);
    delivery.Enqueue([&] {
      delivery_id = std::this_thread::get_id();
      go_on.WaitForNotification();
    });
    const auto run = std::make_shared<EngineRun>(fake.engine, &delivery, diary.Events());
    run->Start({Generating(), Generating()});
    fake.engine->Drain(absl::InfiniteFuture());
    EXPECT_THAT(diary.events, IsEmpty());
    go_on.Notify();
  }
  EXPECT_THAT(diary.events, ElementsAre("token 0", "token 0, the last", "result 0", "token 1",
                                        "token 1, the last", "result 1", ""));
  EXPECT_THAT(diary.threads, ::testing::Each(delivery_id));
}

TEST(EngineRunTest, ARequestThatAsksForNothingHasAnEmptyResult) {
  FakeModel fake = MakeFakeModel();
  Diary diary;
  const InferenceRequest nothing = {.token_ids = {3}};
  std::make_shared<EngineRun>(fake.engine, nullptr, diary.Events())->Start({nothing, nothing});
  EXPECT_THAT(diary.events, ElementsAre("result 0", "result 1", ""));
  EXPECT_THAT(fake.engine->seen(), IsEmpty());
}

TEST(EngineRunTest, TheFirstErrorEndsTheRestAndIsToldAtTheEnd) {
  FakeModel fake = MakeFakeModel();
  fake.engine->FailAfter(1, Internal("the logits are not finite"));
  Diary diary;
  fake.engine->Hold(true);
  std::make_shared<EngineRun>(fake.engine, nullptr, diary.Events())
      ->Start({Generating(), Generating()});
  fake.engine->Hold(false);
  fake.engine->Drain(absl::InfiniteFuture());
  EXPECT_THAT(diary.events, ElementsAre("token 0", "the logits are not finite"));
}

}  // namespace
}  // namespace taopd::testing
