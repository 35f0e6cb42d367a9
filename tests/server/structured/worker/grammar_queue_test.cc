#include "server/structured/worker/grammar_queue.h"

#include <string>
#include <vector>

#include "server/structured/grammar_strikes.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Takes `num` frames and charges each with the milliseconds of its grammar.
std::vector<std::string> TakeAll(GrammarQueue* queue, const std::vector<double>& ms_of_grammar,
                                 size_t num) {
  std::vector<std::string> taken;
  while (taken.size() < num && !queue->empty()) {
    auto [grammar, frame] = queue->Take();
    queue->Charge(grammar, ms_of_grammar[grammar]);
    taken.push_back(frame);
  }
  return taken;
}

TEST(GrammarQueueTest, GrammarsTakeTurnsByTheTimeThatTheyTake) {
  GrammarQueue queue;
  for (const char* frame : {"a1", "a2", "a3"}) queue.Push(0, frame);
  for (const char* frame : {"b1", "b2", "b3", "b4", "b5", "b6"}) queue.Push(1, frame);
  EXPECT_THAT(TakeAll(&queue, {3.5, 1.0}, 9),
              ElementsAre("a1", "b1", "b2", "b3", "b4", "a2", "b5", "b6", "a3"));
}

// A grammar that comes late neither waits for what others were served before nor has saved up
// time.
TEST(GrammarQueueTest, AGrammarThatComesLateBeginsWhereTheOthersAre) {
  GrammarQueue queue;
  for (int i = 0; i < 50; ++i) queue.Push(0, "a");
  TakeAll(&queue, {10.0}, 40);
  queue.Push(1, "b1");
  queue.Push(1, "b2");
  queue.Push(1, "b3");
  EXPECT_THAT(TakeAll(&queue, {10.0, 10.0}, 5), ElementsAre("b1", "a", "b2", "a", "b3"));
}

TEST(GrammarStrikesTest, TwoStrikesWithinTheTimeRefuseAGrammarForTheTime) {
  GrammarStrikes strikes(absl::Minutes(10));
  const absl::Time begin = absl::FromUnixSeconds(1000);
  strikes.Add("a", "it is slow", begin);
  EXPECT_OK(strikes.Check("a", begin));
  strikes.Add("a", "it is slow", begin + absl::Minutes(9));
  EXPECT_ERROR(strikes.Check("a", begin + absl::Minutes(9)), kInvalidArgument,
               "it is slow; it ended the grammar process 2 times and is refused for 10m");
  EXPECT_OK(strikes.Check("b", begin + absl::Minutes(9)));
  EXPECT_ERROR(strikes.Check("a", begin + absl::Minutes(18)), kInvalidArgument, "refused for 1m");
  EXPECT_OK(strikes.Check("a", begin + absl::Minutes(19)));
  // Older strikes do not count.
  strikes.Add("a", "it is slow", begin + absl::Minutes(30));
  strikes.Add("a", "it is slow", begin + absl::Minutes(41));
  EXPECT_OK(strikes.Check("a", begin + absl::Minutes(41)));
}

TEST(GrammarStrikesTest, OnlySoManyGrammarsAreRemembered) {
  GrammarStrikes strikes(absl::Minutes(10));
  const absl::Time begin = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 2; ++i) strikes.Add("first", "slow", begin);
  for (size_t i = 0; i < GrammarStrikes::kMaxGrammars; ++i)
    strikes.Add(std::to_string(i), "slow", begin + absl::Seconds(1));
  EXPECT_OK(strikes.Check("first", begin + absl::Seconds(1)));
}

}  // namespace
}  // namespace taopd::testing
