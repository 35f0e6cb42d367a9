// The fuzz entry of config.json on damaged configurations of every architecture.
#include <gtest/gtest.h>

#include "tests/support/files.h"
#include "tests/support/mutation.h"

namespace taopd::testing {
namespace {

TEST(ModelConfig, SurvivesDamage) {
  std::vector<std::string> examples;
  for (const char* name :
       {"llama31", "qwen2_window", "qwen2_yarn", "qwen3_tied", "qwen3_moe_mixed"}) {
    examples.push_back(
        ReadFile(SourcePath(std::string("tests/common/model/golden/") + name + "/config.json")));
  }
  RunMutations(examples, 10000, 2);
}

}  // namespace
}  // namespace taopd::testing
