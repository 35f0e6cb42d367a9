// A run with adapters, or with an average of its weights as its teacher, that goes back to a
// checkpoint ends as a run that starts there: nothing remembers the steps that are gone.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class RolledBackRunTest : public TrainerTest {
 protected:
  // Trains with a growing rate until the student has gone too far from its start, goes back, and
  // continues with a small rate.
  void ExpectEndsLikeARunThatStartsThere(const std::string& more);
  // Returns how many of the 24 prompts, and those of earlier epochs, lie before a step's end.
  int64_t PositionAfter(int64_t step) {
    const auto state = nlohmann::json::parse(ReadFile(CheckpointOf("run", step) + "/state.json"));
    return 24 * state.at("epoch").get<int64_t>() + state.at("epoch_index").get<int64_t>();
  }
  // Gives each row a prompt of the teacher's, so that a student can learn from itself.
  void WriteTeacherPrompts() {
    std::string text;
    for (nlohmann::json& row : Lines("prompts.jsonl")) {
      row["hint_ids"] = {1, 7, 9};
      text += row.dump() + "\n";
    }
    WriteFile(dir_.File("prompts.jsonl"), text);
  }
};

void RolledBackRunTest::ExpectEndsLikeARunThatStartsThere(const std::string& more) {
  const Strings settings = Words(
      "trainer.total_steps=12 trainer.save_every=1 trainer.keep_checkpoints=20 "
      "eval.measure=none optimizer.lr=0.5 optimizer.warmup_steps=200 "
      "optimizer.max_grad_norm=0 guard.patience=2 guard.kl_every=1 "
      "guard.kl_to_start.action=roll_back guard.rollback_lr_factor=0.001 " +
      more);
  ASSERT_TRUE(Trains(settings));
  const std::vector<nlohmann::json> rolled_back = RollBacks("run");
  ASSERT_EQ(rolled_back.size(), 1u) << output_;
  const int64_t from = rolled_back[0].at("from_step"), to = rolled_back[0].at("to_step");
  // The prompts of the steps that are gone are skipped, and the run says how many.
  const int64_t batch = PositionAfter(to) / to;
  EXPECT_EQ(rolled_back[0].at("skipped_prompts"), (from - to) * batch);
  EXPECT_EQ(PositionAfter(12), (12 + from - to) * batch);
  const auto model = ModelOf("run");
  const auto state = FilesOf(CheckpointOf("run", 12));
  // The same run once more, from the checkpoint to which it went back.
  for (int64_t step = to + 1; step <= 12; ++step)
    std::filesystem::remove_all(CheckpointOf("run", step));
  std::filesystem::remove_all(dir_.File("run/model"));
  ASSERT_TRUE(Trains(settings, {"--resume"}));
  EXPECT_EQ(ModelOf("run"), model);
  // It holds the average of the weights.
  EXPECT_EQ(FilesOf(CheckpointOf("run", 12)).at("optimizer.safetensors"),
            state.at("optimizer.safetensors"));
}

// Rollouts in flight have no effect on a run that goes back.
TEST_F(RolledBackRunTest, OneStepOff) {
  ExpectEndsLikeARunThatStartsThere(
      "trainer.async_steps=1 optimizer.lr=8.0 guard.baseline_steps=2 guard.low_entropy.limit=0.5 "
      "guard.low_entropy.action=roll_back guard.rollback_lr_factor=0.01");
}

TEST_F(RolledBackRunTest, WithAdapters) {
  ExpectEndsLikeARunThatStartsThere(
      "student.lora.rank=4 student.lora.modules_to_save=[norm] guard.kl_to_start.limit=0.35");
}

TEST_F(RolledBackRunTest, WithAdaptersOneStepOff) {
  ExpectEndsLikeARunThatStartsThere(
      "student.lora.rank=4 trainer.async_steps=1 guard.kl_to_start.limit=0.35");
}

// The student teaches itself and has another prompt as the teacher.
TEST_F(RolledBackRunTest, WithAnAverageThatTeaches) {
  WriteTeacherPrompts();
  ExpectEndsLikeARunThatStartsThere(
      "teacher.kind=self teacher.weights=ema teacher.ema=0.9 data.teacher_prompt_key=hint "
      "optimizer.lr=8.0 guard.kl_to_start.limit=0.52");
}

TEST_F(RolledBackRunTest, WithAnAverageOfAdaptersThatTeachesOneStepOff) {
  WriteTeacherPrompts();
  ExpectEndsLikeARunThatStartsThere(
      "teacher.kind=self teacher.weights=ema teacher.ema=0.9 data.teacher_prompt_key=hint "
      "student.lora.rank=4 trainer.async_steps=1 guard.kl_to_start.limit=0.2");
}

}  // namespace
}  // namespace taopd::testing
