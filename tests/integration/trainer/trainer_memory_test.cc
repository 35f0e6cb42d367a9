// Runs whose memory does not suffice, or just suffices.
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

// A model whose optimizer state is larger than what a process may take trains on four ranks, each
// under that limit. The limit is the system's, on each process: ulimit -d, which counts all memory
// that a process can write to.
class TrainerLimitedRanksTest : public TrainerTest {
 protected:
  // Makes the model in bfloat16 and returns its number of parameters.
  int64_t MakeLargeModel() {
    MakeModel("large",
              {{"hidden_size", 512},
               {"intermediate_size", 2048},
               {"num_hidden_layers", 36},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 4},
               {"head_dim", 64},
               {"initializer_range", 0.02}},
              {"model.dtype=bfloat16", "optimizer.lr=0", "trainer.batch_size=1"});
    std::filesystem::remove_all(dir_.File("large/checkpoints"));
    const std::string weights = dir_.File("large/model/model.safetensors");
    return static_cast<int64_t>(std::filesystem::file_size(weights)) / 2;
  }

  // Trains for one step with a limit of `limit` bytes per process. Returns the exit code.
  int TrainUnderLimit(int64_t limit, int64_t num_ranks, const std::string& more = "") {
    // Stacks of threads count in full, used or not.
    const Strings limited = {"/bin/bash", "-c", "ulimit -d \"$0\" && ulimit -s 1024 && exec \"$@\"",
                             Concat(limit / 1024)};
    const Strings settings =
        Words(Concat("student.model=", dir_.File("large/model"), " ", RunDir("limited-run"),
                     " trainer.total_steps=1 trainer.save_every=0 eval.measure=none "
                     "rollout.max_num_seqs=4 trainer.head_workspace_mb=4 "
                     "trainer.mini_batch_size=4 student.dtype=bfloat16 ",
                     more));
    return RunCommand(Joined(limited, Command(TrainArguments(settings), num_ranks)));
  }
};

TEST_F(TrainerLimitedRanksTest, FourRanksTrainWhatOneCannotHold) {
  if (std::getenv("TAOPD_LARGE_MODELS") == nullptr) {
    GTEST_SKIP() << "takes 6 GiB and a minute: set TAOPD_LARGE_MODELS (the ctest entry with the "
                    "label slow does)";
  }
  const int64_t num_parameters = MakeLargeModel();
  // Master copies and moments in float32.
  const int64_t state_bytes = 12 * num_parameters;
  const int64_t limit = state_bytes - 16 * kMib;
  // The plan refuses a single process before it reads weights, and without the plan it fails.
  EXPECT_EQ(TrainUnderLimit(limit, 1), 71) << output_;
  EXPECT_THAT(output_, HasSubstr("that ulimit leaves it"));
  EXPECT_EQ(TrainUnderLimit(limit, 1, "trainer.memory_plan=off"), 71) << output_;
  EXPECT_THAT(output_, HasSubstr("out of memory"));
  // Four processes share the state.
  EXPECT_EQ(TrainUnderLimit(limit, 4), 0) << output_;
  EXPECT_EQ(Losses("limited-run").size(), 1U);
}

// Memory runs out at any moment of a run: while it loads, rolls out, scores, trains, evaluates or
// saves. The run says so with its own exit code and the memory plan, and nothing that is saved is
// lost.
class TrainerOutOfMemoryTest : public TrainerTest {
 protected:
  // Trains to the end, or until the tensor number `failing` finds no memory.
  int TrainWithout(int64_t failing, const std::string& run) {
    const Strings environment = {"/usr/bin/env",
                                 "LD_PRELOAD=" + TestLibraryPath("failing_allocation"),
                                 Concat("TAOPD_FAILING_ALLOCATION=", failing),
                                 "TAOPD_ALLOCATIONS_PATH=" + dir_.File("allocations")};
    return RunCommand(Joined(environment, Command(Arguments(run))));
  }
  Strings Arguments(const std::string& run) {
    const Strings settings = {RunDir(run), "trainer.eval_every=2", "trainer.async_save=off",
                              "trainer.total_steps=4"};
    return TrainArguments(Joined(settings, more_), {"--resume=auto"});
  }
  void FailAtAnyMoment();
  Strings more_;  // settings
};

// TAOPD_MEMORY_CASES: how many moments (the ctest entry with the label slow sets 60).
void TrainerOutOfMemoryTest::FailAtAnyMoment() {
  ASSERT_EQ(TrainWithout(0, "whole"), 0) << output_;
  const int64_t num_allocations = std::atoll(ReadFile(dir_.File("allocations")).c_str());
  ASSERT_GT(num_allocations, 1000) << "the library is not asked";
  const auto whole = ModelOf("whole");
  const int64_t count = NumberFromEnvironment("TAOPD_MEMORY_CASES", 6);
  RandomStream random(7);
  for (int64_t i = 0; i < count; ++i) {
    // One in each of equal parts of the run.
    const int64_t failing =
        1 + num_allocations * i / count +
        static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(num_allocations / count)));
    const std::string run = Concat("run-", i);
    SCOPED_TRACE(Concat("allocation ", failing, " of ", num_allocations));
    const int code = TrainWithout(failing, run);
    if (code != 0) {
      EXPECT_EQ(code, 71) << output_;
      EXPECT_THAT(output_, HasSubstr("out of memory"));
      const bool has_begun = output_.find("started run=") != std::string::npos;
      // A response that is generated ahead of its step fails without the plan.
      const bool is_ahead = output_.find("no checkpoint is possible") != std::string::npos;
      if (has_begun && !is_ahead) {
        EXPECT_THAT(output_, HasSubstr("The plan was:"));
      }
      const size_t saved = output_.find("the state after step ");
      if (saved != std::string::npos) {
        EXPECT_EQ(NewestCheckpoint(run), std::atoll(output_.c_str() + saved + 21)) << output_;
      }
      std::printf("%s\n", output_.substr(output_.rfind("taopd-trainer: "), 200).c_str());
      ASSERT_TRUE(Runs(Arguments(run)));
    }
    EXPECT_EQ(ModelOf(run), whole) << output_;
  }
}

TEST_F(TrainerOutOfMemoryTest, EndsWithItsOwnCodeAndARestartEndsWithTheSameWeights) {
  FailAtAnyMoment();
}

// The average that teaches is never saved between two steps, whether it scores the step itself or
// responses of later ones.
TEST_F(TrainerOutOfMemoryTest, AnAverageOfAdaptersThatTeachesIsNotSavedHalfUpdated) {
  more_ = Words(
      "student.lora.rank=4 student.lora.modules_to_save=[norm] optimizer.lr=1e-2 "
      "teacher.kind=self teacher.weights=ema teacher.ema=0.5 trainer.async_steps=1");
  FailAtAnyMoment();
}

}  // namespace
}  // namespace taopd::testing
