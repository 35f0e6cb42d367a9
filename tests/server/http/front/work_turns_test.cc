#include "server/http/front/work_turns.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

TEST(WorkTurnsTest, AClientHoldsAtMostItsShareOfTheWorkers) {
  WorkTurns turns(4, 0.5);
  for (uint64_t id = 1; id <= 6; ++id) turns.Add(id, "a");
  EXPECT_EQ(turns.Next(), 1u);
  EXPECT_EQ(turns.Next(), 2u);
  EXPECT_EQ(turns.Next(), std::nullopt);  // two are kept for others
  turns.Add(7, "b");
  turns.Add(8, "b");
  turns.Add(9, "c");
  EXPECT_EQ(turns.Next(), 7u);
  EXPECT_EQ(turns.Next(), 9u);  // not 8: c has none
  EXPECT_EQ(turns.Next(), std::nullopt);
}

TEST(WorkTurnsTest, AFreeWorkerGoesToTheClientWithTheFewest) {
  WorkTurns turns(3, 1.0);
  for (uint64_t id = 1; id <= 5; ++id) turns.Add(id, "a");
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(turns.Next(), id);
  turns.Add(6, "b");
  turns.Add(7, "c");
  EXPECT_EQ(turns.Next(), std::nullopt);
  turns.End(2);
  turns.End(2);                 // it holds none any more
  turns.End(99);                // nobody knows it
  EXPECT_EQ(turns.Next(), 6u);  // before c, who came later, and a, who holds two
  EXPECT_EQ(turns.Next(), std::nullopt);
  turns.End(1);
  EXPECT_EQ(turns.Next(), 7u);
  turns.End(3);
  EXPECT_EQ(turns.Next(), 4u);  // in the order of arrival
}

TEST(WorkTurnsTest, ForgetsClientsThatAreDone) {
  WorkTurns turns(2, 0.5);
  turns.Add(1, "a");
  EXPECT_EQ(turns.Next(), 1u);
  turns.End(1);
  EXPECT_EQ(turns.num_clients(), 0u);
  EXPECT_EQ(turns.Next(), std::nullopt);
}

}  // namespace
}  // namespace taopd
