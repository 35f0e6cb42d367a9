#include "server/structured/worker/form_queue.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "server/structured/form_blame.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using ::testing::ElementsAre;

// Takes `num` frames, each of which uses the milliseconds of its form.
std::vector<std::string> TakeAll(FormQueue* queue, const std::vector<double>& ms_of_form,
                                 size_t num) {
  std::vector<std::string> taken;
  while (taken.size() < num && !queue->empty()) {
    auto [form, frame] = queue->Take();
    queue->Charge(form, ms_of_form[form]);
    taken.push_back(frame);
  }
  return taken;
}

TEST(FormQueueTest, FormsTakeTurnsByTheTimeThatTheyTake) {
  FormQueue queue;
  for (const char* frame : {"a1", "a2", "a3"}) queue.Push(0, frame);
  for (const char* frame : {"b1", "b2", "b3", "b4", "b5", "b6"}) queue.Push(1, frame);
  EXPECT_THAT(TakeAll(&queue, {3.5, 1.0}, 9),
              ElementsAre("a1", "b1", "b2", "b3", "b4", "a2", "b5", "b6", "a3"));
}

// A form that comes late neither waits for what others were served before, nor has saved up time.
TEST(FormQueueTest, AFormThatComesLateBeginsWhereTheOthersAre) {
  FormQueue queue;
  for (int i = 0; i < 50; ++i) queue.Push(0, "a");
  TakeAll(&queue, {10.0}, 40);
  queue.Push(1, "b1");
  queue.Push(1, "b2");
  queue.Push(1, "b3");
  EXPECT_THAT(TakeAll(&queue, {10.0, 10.0}, 5), ElementsAre("b1", "a", "b2", "a", "b3"));
}

TEST(FormBlameTest, TwoEndsWithinTheTimeRefuseAFormForTheTime) {
  FormBlame blame(absl::Minutes(10));
  const absl::Time begin = absl::FromUnixSeconds(1000);
  blame.Add("a", "it is slow", begin);
  EXPECT_OK(blame.Check("a", begin));
  blame.Add("a", "it is slow", begin + absl::Minutes(9));
  EXPECT_ERROR(blame.Check("a", begin + absl::Minutes(9)), absl::StatusCode::kInvalidArgument,
               "it is slow; it ended the grammar process 2 times and is refused for 10m");
  EXPECT_OK(blame.Check("b", begin + absl::Minutes(9)));
  EXPECT_ERROR(blame.Check("a", begin + absl::Minutes(18)), absl::StatusCode::kInvalidArgument,
               "refused for 1m");
  EXPECT_OK(blame.Check("a", begin + absl::Minutes(19)));
  // Faults that lie further back do not count.
  blame.Add("a", "it is slow", begin + absl::Minutes(30));
  blame.Add("a", "it is slow", begin + absl::Minutes(41));
  EXPECT_OK(blame.Check("a", begin + absl::Minutes(41)));
}

TEST(FormBlameTest, OnlySoManyFormsAreRemembered) {
  FormBlame blame(absl::Minutes(10));
  const absl::Time begin = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 2; ++i) blame.Add("first", "slow", begin);
  for (size_t i = 0; i < FormBlame::kMaxForms; ++i)
    blame.Add(std::to_string(i), "slow", begin + absl::Seconds(1));
  EXPECT_OK(blame.Check("first", begin + absl::Seconds(1)));
}

}  // namespace
}  // namespace taopd::testing
