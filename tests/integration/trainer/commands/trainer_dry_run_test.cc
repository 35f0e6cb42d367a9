// Tests of train --dry-run: it fails where train fails, measures what the run's first step
// measures, and leaves nothing.

#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

namespace fs = std::filesystem;

// Sums in another order change a log-prob by about this much.
constexpr double kSumOrder = 1e-5;

class TrainerDryRunTest : public TrainerTest {
 protected:
  Strings Arguments(const Strings& settings = {}, const Strings& flags = {}) {
    return TrainArguments(settings, Joined({"--dry-run"}, flags));
  }
  // Returns the value of a line "  NAME  VALUE" of the last output.
  double Printed(const std::string& name) {
    const size_t at = output_.find("\n  " + name + " ");
    if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
    return std::stod(output_.substr(at + 3 + name.size()));
  }
};

// The loss has more digits than any difference between two batches would leave equal.
TEST_F(TrainerDryRunTest, MeasuresTheFirstStepAndLeavesNothing) {
  const Strings one_update = {"trainer.mini_batch_size=4",
                              Concat("teacher.cache_dir=", dir_.File("cache"))};
  const auto before = FilesOf(dir_.File("student"));
  ASSERT_TRUE(Runs(Arguments(one_update)));
  EXPECT_THAT(output_, HasSubstr("dry run: 4 of 24 prompts, 8 responses"));
  EXPECT_THAT(output_, HasSubstr("  --- a response to prompts.jsonl:"));
  EXPECT_FALSE(Exists("run"));
  EXPECT_FALSE(Exists("cache"));
  EXPECT_EQ(FilesOf(dir_.File("student")), before);
  const double loss = Printed("loss/mean"), norm = Printed("loss/grad_norm");

  // Two mini-batches: the second one finds the same weights, so its policy is still the one
  // that has generated it.
  ASSERT_TRUE(Runs(Arguments()));
  EXPECT_NEAR(Printed("policy/kl_behavior"), 0, kSumOrder) << output_;

  ASSERT_TRUE(Trains(one_update));
  const double first_loss = Losses("run").front();
  EXPECT_GT(std::abs(first_loss), 1e-3);
  EXPECT_NEAR(loss, first_loss, 1e-8 * std::abs(first_loss)) << "nine digits are printed";
  EXPECT_GT(norm, 0);
}

TEST_F(TrainerDryRunTest, RefusesWhatTrainRefusesAndTouchesNoRun) {
  const RawListener used;
  const std::string missing = dir_.File("missing.jsonl");
  const struct {
    Strings settings;
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
    EXPECT_EQ(Run(Arguments(c.settings)), c.code) << output_;
    EXPECT_EQ(Train(c.settings), c.code) << output_;
    fs::remove_all(dir_.File("run"));
  }
  EXPECT_EQ(Run(Arguments({}, {"--resume"})), 64) << output_;

  ASSERT_TRUE(Trains({"trainer.total_steps=1"}));
  const auto run = FilesOf(dir_.File("run"));
  ExpectFails(Arguments(), 64, "holds a run already");
  EXPECT_TRUE(Runs(Arguments({}, {"--overwrite"})));
  EXPECT_EQ(FilesOf(dir_.File("run")), run);
}

TEST_F(TrainerDryRunTest, TwoRanksTakeTheirSharesOfTheBatch) {
  const Strings arguments = Arguments({"trainer.mini_batch_size=4"});
  ASSERT_TRUE(Runs(arguments));
  const double alone = Printed("loss/mean");
  ASSERT_TRUE(Runs(arguments, 2));
  // The sums of two ranks are rounded in another order than those of one.
  constexpr double kTolerance = 1e-5;
  EXPECT_NEAR(Printed("loss/mean"), alone, kTolerance);
  EXPECT_FALSE(Exists("run"));
}

}  // namespace
}  // namespace taopd::testing
