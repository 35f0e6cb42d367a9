// Tests of both programs with compositions of LibTorch operations in place of their kernels.
#include <cmath>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

// Losses differ by roundings in float32 until a sampled token falls on the other side of one. One
// token changes one of the 24 rollouts of a step.
constexpr double kLossTolerance = 0.02;

class KernelsTest : public TrainerTest {
 protected:
  // Makes the quickstart's data, its teacher and its student, which have learned a little.
  void MakeQuickstart() {
    std::string output;
    ASSERT_EQ(
        RunProgram({"/usr/bin/env", "python3", SourcePath("deploy/examples/addition/generate.py"),
                    dir_.File("data"), "--train", "48", "--val", "8", "--teacher-sft", "512",
                    "--student-sft", "512"},
                   dir_.File("generate.log"), &output, absl::Seconds(60)),
        0)
        << output;
    for (const std::string name : {"teacher", "student"}) {
      std::vector<std::string> arguments = {
          "sft", "--config", SourcePath(Concat("deploy/recipes/addition/", name, "_sft.yaml"))};
      for (const std::string& setting :
           {Concat("run.dir=", dir_.File(Concat("quick_", name))),
            Concat("model.config=", SourcePath("deploy/examples/addition/config.json")),
            Concat("model.tokenizer=", dir_.File("data/tokenizer")),
            Concat("data.train=[", dir_.File(Concat("data/", name, "_sft.jsonl")), "]"),
            std::string("trainer.total_steps=6"), std::string("optimizer.warmup_steps=0")}) {
        arguments.insert(arguments.end(), {"--set", setting});
      }
      ASSERT_EQ(Run(arguments, &output), 0) << output;
    }
  }

  // Trains the student for four steps, and returns the losses.
  std::vector<double> TrainWith(const std::string& kernels) {
    TeacherProcess teacher(dir_, dir_.File("quick_teacher/model"), 0,
                           {"--kernels", kernels, "--kv-cache-memory-bytes", "16MiB"});
    const std::string run = dir_.File(Concat("run-", kernels));
    std::string output;
    std::vector<std::string> arguments = {"train", "--config",
                                          SourcePath("deploy/recipes/addition/train.yaml")};
    for (const std::string& setting :
         {Concat("run.dir=", run), Concat("student.model=", dir_.File("quick_student/model")),
          Concat("teacher.endpoints=[", teacher.endpoint(), "]"),
          Concat("data.train=[", dir_.File("data/train.jsonl"), "]"),
          Concat("data.val=[", dir_.File("data/val.jsonl"), "]"),
          Concat("trainer.kernels=", kernels), std::string("data.train_batch_size=6"),
          std::string("trainer.mini_batch_size=3"), std::string("trainer.total_steps=4"),
          std::string("trainer.eval_every=4"), std::string("trainer.save_every=4"),
          std::string("trainer.num_threads=1"), std::string("eval.num_prompts=8"),
          std::string("optimizer.warmup_steps=0")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    EXPECT_EQ(Run(arguments, &output), 0) << output;
    return Losses(run);
  }
};

TEST_F(KernelsTest, TheQuickstartsModelTrainsAlikeWithoutTheKernels) {
  MakeQuickstart();
  const std::vector<double> custom = TrainWith("custom"), composed = TrainWith("composed");
  ASSERT_EQ(custom.size(), 4u);
  ASSERT_EQ(composed.size(), 4u);
  for (size_t i = 0; i < custom.size(); ++i) {
    EXPECT_NEAR(composed[i], custom[i], kLossTolerance * std::abs(custom[i])) << i;
  }
  // Equal numbers would mean that the setting is not read.
  EXPECT_NE(custom, composed);
}

TEST_F(KernelsTest, UnknownKernelsAndGraphsWithoutThemAreRefused) {
  std::string output;
  EXPECT_EQ(Train("grpc://127.0.0.1:1", &output, {"trainer.kernels=aten"}), 64) << output;
  EXPECT_THAT(output, HasSubstr("trainer.kernels"));
  EXPECT_EQ(Train("grpc://127.0.0.1:1", &output,
                  {"trainer.kernels=composed", "rollout.cuda_graphs=true"}),
            64)
      << output;
  EXPECT_THAT(output, HasSubstr("rollout.cuda_graphs = true: trainer.kernels = composed"));
}

}  // namespace
}  // namespace taopd::testing
