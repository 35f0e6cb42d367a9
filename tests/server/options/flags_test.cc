#include "server/options/flags.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace taopd::testing {
namespace {

struct OptimizerConfig {
  double lr = 1e-6;
  int64_t warmup_steps = 0;
  void Declare(SettingTable& keys) {
    keys.Add("lr", &lr, "Peak learning rate.");
    keys.Add("warmup_steps", &warmup_steps, "Warm-up.");
  }
};

struct FlatConfig {
  std::string name;
  bool resume = false;
  std::vector<std::string> files;
  OptimizerConfig optimizer;
  void Declare(SettingTable& keys) {
    keys.Add("name", &name, "Name.");
    keys.Add("resume", &resume, "Resume.");
    keys.Add("files", &files, "Files.");
    keys.AddSection("optimizer", "The optimizer.", optimizer);
  }
};

TEST(Flags, ComeFromTheDeclarations) {
  FlatConfig config;
  const SettingTable table = DescribeSettings(config);
  CLI::App app;
  AddSettingFlags(table, &app);
  app.parse("--name x --optimizer-warmup-steps 4 --resume --files a b");
  EXPECT_EQ(config.name, "x");
  EXPECT_EQ(config.optimizer.warmup_steps, 4);
  EXPECT_TRUE(config.resume);
  EXPECT_EQ(config.files.size(), 2u);
  EXPECT_THAT(app.help(), HasSubstr("Peak learning rate."));
}

}  // namespace
}  // namespace taopd::testing
