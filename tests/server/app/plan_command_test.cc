#include "server/app/plan_command.h"

#include <sstream>

#include "tests/common/memory/public_configs.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class PlanCommand : public ::testing::Test {
 protected:
  PlanCommand() { WriteFile(dir_.File("config.json"), testing::kQwen3_8b); }

  // Runs the program's --plan with these flags besides; returns the exit code.
  int Run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"taopd-teacher", "--model", dir_.path(), "--plan"});
    std::vector<const char*> arguments;
    for (const std::string& flag : flags) arguments.push_back(flag.c_str());
    std::ostringstream out, err;
    auto parsed =
        ParseTeacherOptions(static_cast<int>(arguments.size()), arguments.data(), out, err);
    int exit_code = -1;
    if (auto* options = std::get_if<TeacherOptions>(&parsed)) {
      exit_code = PrintPlan(
          *options,
          [&]() -> absl::StatusOr<MemoryBudget> {
            ++num_finds_;
            return budget_;
          },
          out, err);
    }
    out_ = out.str();
    err_ = err.str();
    return exit_code;
  }

  TempDir dir_;
  absl::StatusOr<MemoryBudget> budget_ = FailedPrecondition("no such device");
  int num_finds_ = 0;
  std::string out_, err_;
};

TEST_F(PlanCommand, CountsTheGrammarProcessWhereThereIsATokenizer) {
  WriteFile(dir_.File("tokenizer.json"), "{}");
  EXPECT_EQ(Run({"--plan-device", "cuda:80GiB"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("structured output (limit)    1275068416   1.2 GiB"));
}

TEST_F(PlanCommand, PrintsTheTableOfADescribedDevice) {
  EXPECT_EQ(Run({"--plan-device", "cuda:80GiB", "--max-message-memory-bytes", "134217728"}),
            kExitOk)
      << err_;
  EXPECT_EQ(num_finds_, 0);
  EXPECT_EQ(err_, "");
  EXPECT_THAT(out_, HasSubstr("cuda    projections                 13891534848  12.9 GiB"));
  EXPECT_THAT(out_, HasSubstr("messages (limit)              134217728   0.1 GiB"));
  EXPECT_THAT(out_, Not(HasSubstr("structured output")));  // there is no tokenizer
  EXPECT_THAT(out_, HasSubstr("of 72.0 GiB (gpu_memory_utilization 0.9 of 80.0 GiB)"));
  EXPECT_THAT(out_, HasSubstr("there are no weights in"));
  EXPECT_EQ(Run({"--plan-device", "cuda:80GiB", "--gpu-memory-utilization", "0.5"}), kExitOk)
      << err_;
  EXPECT_THAT(out_, HasSubstr("of 40.0 GiB (gpu_memory_utilization 0.5 of 80.0 GiB)"));
}

TEST_F(PlanCommand, PlansForTheDeviceOfThisMachine) {
  budget_ = MemoryBudget();
  budget_->limit_bytes = int64_t{64} << 30;
  budget_->source = "a test";
  EXPECT_EQ(Run({"--kv-cache-memory-bytes", "0"}), kExitOk) << err_;
  EXPECT_EQ(num_finds_, 1);
  EXPECT_THAT(out_, HasSubstr("of 64.0 GiB (a test)"));
  EXPECT_THAT(out_, HasSubstr("scores only"));
  budget_ = FailedPrecondition("no such device");
  EXPECT_EQ(Run({}), kExitData);
  EXPECT_EQ(err_, "no such device\n");
}

TEST_F(PlanCommand, PrintsAPlanThatDoesNotFitAndExits71) {
  EXPECT_EQ(Run({"--plan-device", "cpu:12GiB"}), kExitOutOfMemory);
  EXPECT_THAT(out_, HasSubstr("packed projections"));
  EXPECT_THAT(out_, Not(HasSubstr("max_generation_len")));
  EXPECT_THAT(err_, HasSubstr("The line that is too large is \"packed projections\""));
}

TEST_F(PlanCommand, NamesWhatIsWrongWithTheModel) {
  WriteFile(dir_.File("config.json"), "{}");
  EXPECT_EQ(Run({"--plan-device", "cpu:16GiB"}), kExitData);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr("architectures is missing"));
}

}  // namespace
}  // namespace taopd::testing
