// Tests of both programs with compositions of LibTorch operations in place of their kernels.
#include <cmath>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

// Losses differ by roundings in float32 until a sampled token falls on the other side of one. One
// token changes one of the 24 rollouts of a step.
constexpr double kLossTolerance = 0.02;

class KernelsTest : public TrainerTest {
 protected:
  // Trains the student for four steps, and returns the losses.
  std::vector<double> TrainWith(const std::string& kernels) {
    StartTeacher(dir_.File("quick_teacher/model"),
                 {"--kernels", kernels, "--kv-cache-memory-bytes", "16MiB"});
    const std::string run = Concat("run-", kernels);
    const Strings settings = {RunDir(run), "student.model=" + dir_.File("quick_student/model"),
                              FromTeacher(), FileSetting("data.train", "data/train.jsonl"),
                              FileSetting("data.val", "data/val.jsonl")};
    EXPECT_TRUE(Runs(
        With({"train", "--config", SourcePath("deploy/recipes/addition/train.yaml")},
             Joined(settings, Words("data.train_batch_size=6 trainer.mini_batch_size=3 "
                                    "trainer.total_steps=4 trainer.eval_every=4 "
                                    "trainer.save_every=4 trainer.num_threads=1 eval.num_prompts=8 "
                                    "optimizer.warmup_steps=0 trainer.kernels=" +
                                    kernels)))));
    return Losses(run);
  }
};

TEST_F(KernelsTest, TheQuickstartsModelTrainsAlikeWithoutTheKernels) {
  MakeQuickstart("trainer.total_steps=6 optimizer.warmup_steps=0");
  const std::vector<double> custom = TrainWith("custom"), composed = TrainWith("composed");
  ASSERT_EQ(custom.size(), 4u);
  ExpectSameLosses("run-composed", "run-custom", kLossTolerance);
  // Equal numbers would mean that the setting is not read.
  EXPECT_NE(custom, composed);
}

TEST_F(KernelsTest, UnknownKernelsAndGraphsWithoutThemAreRefused) {
  ExpectTrainFails({kNobody, "trainer.kernels=aten"}, 64, "trainer.kernels");
  ExpectTrainFails({kNobody, "trainer.kernels=composed", "rollout.cuda_graphs=true"}, 64,
                   "rollout.cuda_graphs = true: kernels = composed");
}

}  // namespace
}  // namespace taopd::testing
