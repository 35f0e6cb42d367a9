// Training of tiny students of every architecture, with the real programs and real tokenizers: two
// steps, then the exported model is read again.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

// What all models here share; tiny but for the vocabulary.
Json BaseConfig(const std::string& architecture, const std::string& model_type, int64_t vocab_size) {
  return {{"architectures", Json::array({architecture})},
          {"model_type", model_type},
          {"vocab_size", vocab_size},
          {"hidden_size", 16},
          {"intermediate_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", true},
          {"initializer_range", 0.1},
          {"torch_dtype", "float32"}};
}

Json Qwen25Config(int64_t vocab_size) {
  Json json = BaseConfig("Qwen2ForCausalLM", "qwen2", vocab_size);
  json.update({{"eos_token_id", 151643}, {"bos_token_id", 151643}, {"sliding_window", 4096},
               {"use_sliding_window", false}, {"max_window_layers", 2}});
  return json;
}

Json Qwen3MoeConfig(int64_t vocab_size) {
  Json json = BaseConfig("Qwen3MoeForCausalLM", "qwen3_moe", vocab_size);
  json.update({{"eos_token_id", 151645}, {"bos_token_id", 151643}, {"num_experts", 8},
               {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}, {"norm_topk_prob", true},
               {"decoder_sparse_step", 1}, {"mlp_only_layers", Json::array()}});
  return json;
}

Json Llama31Config(int64_t vocab_size) {
  Json json = BaseConfig("LlamaForCausalLM", "llama", vocab_size);
  json.update({{"eos_token_id", Json::array({128001, 128008, 128009})}, {"bos_token_id", 128000},
               {"rope_scaling", {{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 64}, {"rope_type", "llama3"}}}});
  return json;
}

class ArchitecturesTest : public TrainerTest {
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

  // A model with random weights (after one step of supervised training) and that tokenizer.
  std::string MakeModel(const std::string& name, const Json& config, const std::string& tokenizer_dir) {
    WriteFile(dir_.File(name + ".json"), config.dump());
    WriteFile(dir_.File(name + ".yaml"),
              Concat("run: {name: ", name, ", dir: ", dir_.File(name), "}\n", "model: {config: ",
                     dir_.File(name + ".json"), ", tokenizer: ", tokenizer_dir, "}\n", "data: {train: [",
                     dir_.File("pairs.jsonl"), "], max_length: 64}\n",
                     "trainer: {total_steps: 1, batch_size: 4, num_threads: 1}\n"));
    std::string output;
    EXPECT_EQ(Run({"sft", "--config", dir_.File(name + ".yaml")}, &output), 0) << output;
    return dir_.File(name + "/model");
  }

  // Two steps; the exported model's directory.
  std::string TrainTwoSteps(const std::string& student, const std::string& endpoint, const std::string& tokenizer) {
    WriteFile(dir_.File("train.yaml"),
              Concat("run: {name: two, dir: ", dir_.File("run"), "}\n", "student: {model: ", student,
                     ", tokenizer: \"", tokenizer, "\"}\n", "teacher: {endpoints: [", endpoint, "], top_k: 4}\n",
                     "data: {train: [", dir_.File("prompts.jsonl"),
                     "], train_batch_size: 2, max_prompt_length: 64, max_response_length: 12}\n", "rollout: {n: 2}\n",
                     "optimizer: {lr: 1e-3}\n", "trainer: {total_steps: 2, mini_batch_size: 2, num_threads: 1}\n",
                     "eval: {measure: none}\n"));
    std::string output;
    EXPECT_EQ(Run({"train", "--config", dir_.File("train.yaml"), "--overwrite"}, &output), 0) << output;
    EXPECT_EQ(Losses(dir_.File("run")).size(), 2u);
    for (const double loss : Losses(dir_.File("run"))) EXPECT_GT(loss, 0.0);
    return dir_.File("run/model");
  }
};

TEST_F(ArchitecturesTest, Qwen25AndQwen3MoeStudentsUnderAQwenTeacher) {
  const std::string tokenizer = SharedData("tokenizers/qwen3");
  Json teacher_config = BaseConfig("Qwen3ForCausalLM", "qwen3", 151936);
  teacher_config["eos_token_id"] = 151645;
  TeacherProcess teacher(dir_, MakeModel("teacher", teacher_config, tokenizer));
  for (const Json& config : {Qwen25Config(151936), Qwen3MoeConfig(151936)}) {
    const std::string model_type = config["model_type"];
    const std::string model = TrainTwoSteps(MakeModel(model_type, config, tokenizer), teacher.endpoint(), "");
    std::string output;
    EXPECT_EQ(Run({"generate", "--model", model, "--prompt-ids", "1,2", "--max-new-tokens", "3"}, &output), 0)
        << model_type << output;
    EXPECT_EQ(Json::parse(ReadFile(model + "/config.json"))["model_type"], model_type);
    EXPECT_EQ(FileHash(model + "/tokenizer.json"), FileHash(tokenizer + "/tokenizer.json"));
  }
}

// The paper's case: a Llama student with the tokenizer of the R1 teacher.
TEST_F(ArchitecturesTest, ALlama31StudentWithTheTeachersTokenizer) {
  const std::string tokenizer = SharedData("tokenizers/deepseek-r1-distill-qwen");
  TeacherProcess teacher(dir_, MakeModel("teacher", Qwen25Config(151936), tokenizer));
  const std::string student = MakeModel("llama", Llama31Config(128256), SharedData("tokenizers/llama3.1"));
  std::string output;
  // With its own tokenizer the ids would not mean the same.
  WriteFile(dir_.File("own.yaml"), Concat("run: {dir: ", dir_.File("own"), "}\n", "student: {model: ", student, "}\n",
                                          "teacher: {endpoints: [", teacher.endpoint(), "], top_k: 4}\n",
                                          "data: {train: [", dir_.File("prompts.jsonl"),
                                          "], train_batch_size: 2, max_prompt_length: 64, max_response_length: 12}\n",
                                          "trainer: {mini_batch_size: 2}\n", "eval: {measure: none}\n"));
  EXPECT_NE(Run({"train", "--config", dir_.File("own.yaml")}, &output), 0);
  EXPECT_THAT(output, ::testing::HasSubstr("another tokenizer"));

  const std::string model = TrainTwoSteps(student, teacher.endpoint(), tokenizer);
  const Json config = Json::parse(ReadFile(model + "/config.json"));
  EXPECT_EQ(config["vocab_size"], 151665);  // from 128256
  EXPECT_EQ(config["eos_token_id"], 151643);
  EXPECT_EQ(config["bos_token_id"], 151646);
  EXPECT_EQ(config["pad_token_id"], 151643);
  EXPECT_EQ(config["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(FileHash(model + "/tokenizer.json"), FileHash(tokenizer + "/tokenizer.json"));
  EXPECT_EQ(FileHash(model + "/tokenizer_config.json"), FileHash(tokenizer + "/tokenizer_config.json"));
}

}  // namespace
}  // namespace taopd::testing
