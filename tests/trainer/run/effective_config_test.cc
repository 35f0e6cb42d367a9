#include "trainer/run/effective_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "common/config/yaml.h"
#include "tests/support/status_matchers.h"
#include "trainer/config/train_config.h"

namespace taopd {
namespace {

TEST(ChangedSettings, AreThoseThatDifferAndReadBack) {
  TrainConfig config, defaults, read;
  EXPECT_EQ(ChangedSettings(DescribeSettings(config), DescribeSettings(defaults)), "");
  config.run.name = "a run: #1";
  config.optimizer.lr = 3e-5;
  config.data.train = {"a.jsonl", "b.jsonl"};
  config.objective.terms = {{"ta_opd", 1.0}, {"jsd", 0.5}};
  const std::string changed = ChangedSettings(DescribeSettings(config), DescribeSettings(defaults));
  EXPECT_EQ(std::count(changed.begin(), changed.end(), '\n'), 4) << changed;
  std::istringstream lines(changed);
  for (std::string line; std::getline(lines, line);)
    EXPECT_OK(ApplyOverride(line, DescribeSettings(read)));
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(read)), WriteYamlSettings(DescribeSettings(config)));
}

}  // namespace
}  // namespace taopd
