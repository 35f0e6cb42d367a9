#include "trainer/commands/eval/evaluation_files.h"

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(EvaluationFilesTest, AWeightFileThatCannotBeReadIsAnError) {
  const TempDir dir;
  std::filesystem::create_symlink("absent", dir.File("model.safetensors"));
  EXPECT_ERROR(DescribeEvaluation(TrainConfig(), EvalRequest(), dir.path()), kInternal,
               "cannot read " + dir.File("model.safetensors"));
}

}  // namespace
}  // namespace taopd::testing
