#include "trainer/reward/http_reward.h"

#include <nlohmann/json.hpp>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::vector<RewardSample> Samples() {
  return {{"a-0", "2+2=", "4\n", "4", "addition", false}, {"a-1", "2+2=", "\xff", "4", "", true}};
}

TEST(RewardProtocol, TheRequestHasTheMembersOfEachSample) {
  const auto body = nlohmann::json::parse(RewardRequestBody(Samples()));
  EXPECT_EQ(body, nlohmann::json::parse(R"({"samples": [
      {"id": "a-0", "prompt": "2+2=", "response": "4\n", "answer": "4", "source": "addition"},
      {"id": "a-1", "prompt": "2+2=", "response": "\ufffd", "answer": "4", "source": ""}]})"));
  EXPECT_EQ(RewardRequestBody({}), R"({"samples":[]})");
}

TEST(RewardProtocol, RewardsComeInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rewards,
                       ParseRewards(R"({"rewards": [{"id": "a-1", "reward": -2, "why": "short"},
                                   {"id": "a-0", "reward": 0.5}], "model": "judge"})",
                                    Samples()));
  EXPECT_EQ(rewards, (std::vector<double>{0.5, -2}));
  ASSERT_OK_AND_ASSIGN(const std::vector<double> none, ParseRewards(R"({"rewards": []})", {}));
  EXPECT_TRUE(none.empty());
}

TEST(RewardProtocol, BadAnswersAreNamed) {
  const auto refused = [](const std::string& body, const std::string& says) {
    EXPECT_ERROR(ParseRewards(body, Samples()), kDataLoss, says);
  };
  const std::string first = R"({"id": "a-0", "reward": 1})";
  const auto with = [&](const std::string& second) {
    return "{\"rewards\": [" + first + ", " + second + "]}";
  };
  refused("", "JSON");
  refused("[]", "no list \"rewards\"");
  refused(R"({"rewards": 1})", "no list \"rewards\"");
  refused(R"({"rewards": [)" + first + "]}", "no reward of \"a-1\"");
  refused(with(first), "two rewards of \"a-0\"");
  refused(with(R"({"id": "a-2", "reward": 1})"), "a reward of \"a-2\", which was not asked for");
  refused(with(R"({"reward": 1})"), "has no \"id\"");
  refused(with(R"({"id": 1, "reward": 1})"), "has no \"id\" that is text");
  refused(with("1"), "has no \"id\"");
  refused(with(R"({"id": "a-1"})"), "the entry of \"a-1\" has no \"reward\"");
  refused(with(R"({"id": "a-1", "reward": NaN})"), "JSON has no NaN");
  refused(with(R"({"id": "a-1", "reward": -Infinity})"), "JSON has no NaN and no infinity");
  refused(with(R"({"id": "a-1", "reward": null})"), "the reward of \"a-1\" is null");
  refused(with(R"({"id": "a-1", "reward": "1"})"), "is \"1\", must be a finite number");
  refused(with(R"({"id": "a-1", "reward": true})"), "is true, must be a finite number");
  refused(with(R"({"id": "a-1", "reward": 1e300})"), "must be a finite number");
}

}  // namespace
}  // namespace taopd::testing
