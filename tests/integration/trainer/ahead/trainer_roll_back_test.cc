// A run with adapters, or with an average of its weights as its teacher, that goes back to a
// checkpoint ends as a run that starts there: nothing remembers the steps that are gone.

#include <sstream>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class RolledBackRunTest : public TrainerTest {
 protected:
  // Trains with a growing rate until the student has gone too far from its start, goes back, and
  // continues with a small rate. Without `endpoint`, the student teaches itself and has another
  // prompt as the teacher.
  void ExpectEndsLikeARunThatStartsThere(const std::string& endpoint,
                                         const std::vector<std::string>& more);
  std::vector<nlohmann::json> RollBacks() {
    std::vector<nlohmann::json> rolled_back;
    std::istringstream events(ReadFile(dir_.File("run/events.jsonl")));
    for (std::string line; std::getline(events, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event.at("event") == "rolled_back") rolled_back.push_back(event);
    }
    return rolled_back;
  }
  std::string CheckpointOf(int64_t step) {
    return dir_.File(Concat("run/checkpoints/step-0000", step < 10 ? "0" : "", step));
  }
  // Returns how many of the 24 prompts, and those of earlier epochs, lie before a step's end.
  int64_t PositionAfter(int64_t step) {
    const auto state = nlohmann::json::parse(ReadFile(CheckpointOf(step) + "/state.json"));
    return 24 * state.at("epoch").get<int64_t>() + state.at("epoch_index").get<int64_t>();
  }
  // Gives each row a prompt of the teacher's, so that a student can learn from itself.
  void WriteTeacherPrompts() {
    std::istringstream rows(ReadFile(dir_.File("prompts.jsonl")));
    std::string text;
    for (std::string line; std::getline(rows, line);) {
      auto row = nlohmann::json::parse(line);
      row["hint_ids"] = {1, 7, 9};
      text += row.dump() + "\n";
    }
    WriteFile(dir_.File("prompts.jsonl"), text);
  }
};

void RolledBackRunTest::ExpectEndsLikeARunThatStartsThere(const std::string& endpoint,
                                                          const std::vector<std::string>& more) {
  std::vector<std::string> settings = {"trainer.total_steps=12",
                                       "trainer.save_every=1",
                                       "trainer.keep_checkpoints=20",
                                       "eval.measure=none",
                                       "optimizer.lr=0.5",
                                       "optimizer.warmup_steps=200",
                                       "optimizer.max_grad_norm=0",
                                       "guard.patience=2",
                                       "guard.kl_every=1",
                                       "guard.kl_to_start.action=roll_back",
                                       "guard.rollback_lr_factor=0.001"};
  settings.insert(settings.end(), more.begin(), more.end());
  std::string output;
  ASSERT_EQ(Train(endpoint, &output, settings), 0) << output;
  const std::vector<nlohmann::json> rolled_back = RollBacks();
  ASSERT_EQ(rolled_back.size(), 1u) << output;
  const int64_t from = rolled_back[0].at("from_step"), to = rolled_back[0].at("to_step");
  // The prompts of the steps that are gone are skipped, and the run says how many.
  const int64_t batch = PositionAfter(to) / to;
  EXPECT_EQ(rolled_back[0].at("skipped_prompts"), (from - to) * batch);
  EXPECT_EQ(PositionAfter(12), (12 + from - to) * batch);
  const auto model = FilesOf(dir_.File("run/model"));
  const auto state = FilesOf(CheckpointOf(12));
  // The same run once more, from the checkpoint to which it went back.
  for (int64_t step = to + 1; step <= 12; ++step) std::filesystem::remove_all(CheckpointOf(step));
  std::filesystem::remove_all(dir_.File("run/model"));
  ASSERT_EQ(Train(endpoint, &output, settings, {"--resume"}), 0) << output;
  EXPECT_EQ(FilesOf(dir_.File("run/model")), model);
  // It holds the average of the weights.
  EXPECT_EQ(FilesOf(CheckpointOf(12)).at("optimizer.safetensors"),
            state.at("optimizer.safetensors"));
}

TEST_F(RolledBackRunTest, WithAdapters) {
  const TeacherProcess teacher(dir_, teacher_model_);
  ExpectEndsLikeARunThatStartsThere(teacher.endpoint(),
                                    {"student.lora.rank=4", "student.lora.modules_to_save=[norm]",
                                     "guard.kl_to_start.limit=0.35"});
}

TEST_F(RolledBackRunTest, WithAdaptersOneStepOff) {
  const TeacherProcess teacher(dir_, teacher_model_);
  ExpectEndsLikeARunThatStartsThere(
      teacher.endpoint(),
      {"student.lora.rank=4", "trainer.async_steps=1", "guard.kl_to_start.limit=0.35"});
}

TEST_F(RolledBackRunTest, WithAnAverageThatTeaches) {
  WriteTeacherPrompts();
  ExpectEndsLikeARunThatStartsThere(
      "", {"teacher.kind=self", "teacher.weights=ema", "teacher.ema=0.9",
           "data.teacher_prompt_key=hint", "optimizer.lr=8.0", "guard.kl_to_start.limit=0.52"});
}

TEST_F(RolledBackRunTest, WithAnAverageOfAdaptersThatTeachesOneStepOff) {
  WriteTeacherPrompts();
  ExpectEndsLikeARunThatStartsThere(
      "", {"teacher.kind=self", "teacher.weights=ema", "teacher.ema=0.9",
           "data.teacher_prompt_key=hint", "student.lora.rank=4", "trainer.async_steps=1",
           "guard.kl_to_start.limit=0.2"});
}

}  // namespace
}  // namespace taopd::testing
