// Tests of train --dry-run: it fails where train fails, measures what the run's first step
// measures, and leaves nothing.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Sums in another order change a log-prob by about this much.
constexpr double kSumOrder = 1e-5;

class TrainerDryRunTest : public TrainerTest {
 protected:
  int DryRun(const std::string& endpoint, std::string* output,
             const std::vector<std::string>& settings = {},
             std::vector<std::string> flags = {"--dry-run"}) {
    return Train(endpoint, output, settings, flags);
  }
  // Returns the value of a line "  NAME  VALUE" of the output.
  static double Printed(const std::string& output, const std::string& name) {
    const size_t at = output.find("\n  " + name + " ");
    if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
    return std::stod(output.substr(at + 3 + name.size()));
  }
};

// The loss has more digits than any difference between two batches would leave equal.
TEST_F(TrainerDryRunTest, MeasuresTheFirstStepAndLeavesNothing) {
  const TeacherProcess teacher(dir_, teacher_model_);
  const std::vector<std::string> one_update = {"trainer.mini_batch_size=4",
                                               Concat("teacher.cache_dir=", dir_.File("cache"))};
  const auto before = FilesOf(dir_.File("student"));
  std::string output;
  ASSERT_EQ(DryRun(teacher.endpoint(), &output, one_update), 0) << output;
  EXPECT_THAT(output, HasSubstr("dry run: 4 of 24 prompts, 8 responses"));
  EXPECT_THAT(output, HasSubstr("  --- a response to prompts.jsonl:"));
  EXPECT_FALSE(fs::exists(dir_.File("run")));
  EXPECT_FALSE(fs::exists(dir_.File("cache")));
  EXPECT_EQ(FilesOf(dir_.File("student")), before);
  const double loss = Printed(output, "loss/mean"), norm = Printed(output, "loss/grad_norm");

  // Two mini-batches: the second one finds the same weights, so that its policy is still the one
  // that has generated it.
  ASSERT_EQ(DryRun(teacher.endpoint(), &output), 0) << output;
  EXPECT_NEAR(Printed(output, "policy/kl_behavior"), 0, kSumOrder) << output;

  ASSERT_EQ(Train(teacher.endpoint(), &output, one_update), 0) << output;
  const double first_loss = Losses(dir_.File("run")).front();
  EXPECT_GT(std::abs(first_loss), 1e-3);
  EXPECT_NEAR(loss, first_loss, 1e-8 * std::abs(first_loss)) << "nine digits are printed";
  EXPECT_GT(norm, 0);
}

TEST_F(TrainerDryRunTest, RefusesWhatTrainRefusesAndTouchesNoRun) {
  const TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const PortInUse used;
  const std::string missing = dir_.File("missing.jsonl");
  const struct {
    std::vector<std::string> settings;
    int code;
  } cases[] = {
      {{"trainer.mini_batch_size=3"}, 64},
      {{Concat("data.train=[", missing, "]")}, 65},
      {{"trainer.cpu_memory_limit=1MiB"}, 71},
      {{Concat("trainer.http_port=", used.port())}, 64},
      {{"teacher.top_k=100000"}, 64},
      {{"data.max_response_length=1000"}, 64},
      {{Concat("teacher.endpoints=[grpc://127.0.0.1:", used.port(), "]"),
        "teacher.connect_timeout_s=0.2"},
       69},
      {{Concat("run.dir=", dir_.File("pairs.jsonl"), "/run")}, 64},
  };
  for (const auto& c : cases) {
    std::string trained;
    EXPECT_EQ(DryRun(teacher.endpoint(), &output, c.settings), c.code) << output;
    EXPECT_EQ(Train(teacher.endpoint(), &trained, c.settings), c.code) << trained;
    fs::remove_all(dir_.File("run"));
  }
  EXPECT_EQ(DryRun(teacher.endpoint(), &output, {}, {"--dry-run", "--resume"}), 64) << output;

  ASSERT_EQ(Train(teacher.endpoint(), &output, {"trainer.total_steps=1"}), 0) << output;
  const auto run = FilesOf(dir_.File("run"));
  EXPECT_EQ(DryRun(teacher.endpoint(), &output), 64) << output;
  EXPECT_THAT(output, HasSubstr("holds a run already"));
  EXPECT_EQ(DryRun(teacher.endpoint(), &output, {}, {"--dry-run", "--overwrite"}), 0) << output;
  EXPECT_EQ(FilesOf(dir_.File("run")), run);
}

TEST_F(TrainerDryRunTest, TwoRanksTakeTheirSharesOfTheBatch) {
  const TeacherProcess teacher(dir_, teacher_model_);
  std::string output, alone;
  std::vector<std::string> launched = {"launch", "--nproc", "2", "--"};
  const std::vector<std::string> arguments =
      TrainArguments(teacher.endpoint(), {"trainer.mini_batch_size=4"}, {"--dry-run"});
  launched.insert(launched.end(), arguments.begin(), arguments.end());
  ASSERT_EQ(Run(launched, &output), 0) << output;
  ASSERT_EQ(Run(arguments, &alone), 0) << alone;
  // The sums of two ranks are rounded in another order than those of one.
  constexpr double kTolerance = 1e-5;
  EXPECT_NEAR(Printed(output, "loss/mean"), Printed(alone, "loss/mean"), kTolerance);
  EXPECT_FALSE(fs::exists(dir_.File("run")));
}

}  // namespace
}  // namespace taopd::testing
