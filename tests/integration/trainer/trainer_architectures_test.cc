// Tests of students that take over another model's tokenizer in `train` and in `sft`, with the real
// programs and real tokenizers.

#include "tests/integration/trainer/model_configs.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class OtherTokenizerTest : public TrainerTest {
 protected:
  void SetUp() override {
    if (SharedData("tokenizers").empty()) GTEST_SKIP() << "shared data is absent";
    std::string pairs, prompts;
    for (const char* text : {"What is 2 + 3?", "Solve x^2 = 16.", "Name a prime.", "Is 7 odd?"}) {
      prompts += Json({{"prompt", text}}).dump() + "\n";
      pairs += Json({{"prompt", text}, {"response", "I think it is 5."}}).dump() + "\n";
    }
    WriteFile(dir_.File("prompts.jsonl"), prompts);
    WriteFile(dir_.File("pairs.jsonl"), pairs);
  }

  // Makes a model with that tokenizer and random weights (after one step of supervised training).
  std::string MakeModel(const std::string& name, const Json& config,
                        const std::string& tokenizer_dir) {
    WriteFile(dir_.File(name + ".json"), config.dump());
    WriteFile(dir_.File(name + ".yaml"),
              Concat("run: {name: ", name, ", dir: ", dir_.File(name), "}\n",
                     "model: {config: ", dir_.File(name + ".json"), ", tokenizer: ", tokenizer_dir,
                     "}\n", "data: {train: [", dir_.File("pairs.jsonl"), "], max_length: 64}\n",
                     "trainer: {total_steps: 1, batch_size: 4, num_threads: 1}\n"));
    EXPECT_TRUE(Runs({"sft", "--config", dir_.File(name + ".yaml")}));
    return dir_.File(name + "/model");
  }

  // The student takes over `tokenizer`; an empty one means its own.
  Strings Arguments(const std::string& student, const std::string& tokenizer) {
    WriteFile(dir_.File("train.yaml"),
              Concat("run: {name: two, dir: ", dir_.File("run"), "}\n",
                     "student: {model: ", student, ", tokenizer: \"", tokenizer, "\"}\n",
                     "teacher: {endpoints: [", teacher().endpoint(), "], top_k: 4}\n",
                     "data: {train: [", dir_.File("prompts.jsonl"),
                     "], train_batch_size: 2, max_prompt_length: 64, max_response_length: 12}\n",
                     "rollout: {n: 2}\n", "optimizer: {lr: 1e-3}\n",
                     "trainer: {total_steps: 2, mini_batch_size: 2, num_threads: 1}\n",
                     "eval: {measure: none}\n"));
    return {"train", "--config", dir_.File("train.yaml")};
  }
  // Expects a model to have taken over the tokenizer, with its special tokens.
  void ExpectTokenizer(const std::string& model, const std::string& tokenizer) {
    const Json config = Json::parse(ReadFile(model + "/config.json"));
    EXPECT_EQ(config["vocab_size"], 151665);  // from 128256
    EXPECT_EQ(config["eos_token_id"], 151643);
    EXPECT_EQ(config["bos_token_id"], 151646);
    EXPECT_EQ(config["pad_token_id"], 151643);
    EXPECT_EQ(config["rope_scaling"]["rope_type"], "llama3");
    for (const std::string file : {"/tokenizer.json", "/tokenizer_config.json"})
      EXPECT_EQ(FileHash(model + file), FileHash(tokenizer + file));
  }
};

// In the paper's case a Llama student takes over the tokenizer of the R1 teacher.
TEST_F(OtherTokenizerTest, ALlama31StudentWithTheTeachersTokenizer) {
  const std::string tokenizer = SharedData("tokenizers/deepseek-r1-distill-qwen");
  StartTeacher(MakeModel("teacher", Qwen25Config(151936), tokenizer));
  const std::string student =
      MakeModel("llama", Llama31Config(128256), SharedData("tokenizers/llama3.1"));
  // With the student's own tokenizer the ids would have other meanings.
  EXPECT_NE(Run(Arguments(student, "")), 0);
  EXPECT_THAT(output_, ::testing::HasSubstr("another tokenizer"));

  ASSERT_TRUE(Runs(Arguments(student, tokenizer)));
  EXPECT_EQ(Losses("run").size(), 2u);
  for (const double loss : Losses("run")) EXPECT_GT(loss, 0.0);
  ExpectTokenizer(dir_.File("run/model"), tokenizer);
}

// Supervised training takes over another tokenizer in the same way as distillation.
TEST_F(OtherTokenizerTest, SupervisedTrainingWithTheTeachersTokenizer) {
  const std::string tokenizer = SharedData("tokenizers/deepseek-r1-distill-qwen");
  const std::string llama =
      MakeModel("llama", Llama31Config(128256), SharedData("tokenizers/llama3.1"));
  const auto arguments = [&](const std::string& model) {
    WriteFile(dir_.File("sft.yaml"),
              Concat("run: {dir: ", dir_.File("sft"), "}\n", "model: {", model,
                     ", tokenizer: ", tokenizer, "}\n", "data: {train: [", dir_.File("pairs.jsonl"),
                     "], max_length: 64}\n", "optimizer: {lr: 0.0}\n",
                     "trainer: {total_steps: 1, batch_size: 4, num_threads: 1}\n"));
    return SftArguments({}, {"--overwrite"});
  };
  ASSERT_TRUE(Runs(arguments(Concat("init: ", llama))));
  ExpectTokenizer(dir_.File("sft/model"), tokenizer);
  // Random weights have no rows to take over, so vocab_size in config.json must be large enough.
  ExpectFails(arguments(Concat("config: ", dir_.File("llama.json"))), 65,
              "has 151665 tokens, more than the vocab_size 128256");
}

}  // namespace
}  // namespace taopd::testing
