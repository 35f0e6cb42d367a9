// The data, tokenizer and chat template that the paper's experiments use, with a Qwen3-shaped student and teacher of
// random weights: `data`, `train` and `eval` on the published files, unchanged. Skipped where they are absent.

#include <algorithm>
#include <cmath>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Width and depth of a toy, vocabulary and special tokens of Qwen3.
std::string Qwen3ShapedConfig() {
  return R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151936,"hidden_size":16,
"intermediate_size":32,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":8,
"max_position_embeddings":4096,"rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,
"attention_bias":false,"hidden_act":"silu","initializer_range":0.02,"bos_token_id":151643,"eos_token_id":151645,
"torch_dtype":"float32"})";
}

class PublishedDataTest : public TrainerTest {
 protected:
  void SetUp() override {
    tokenizer_ = SharedData("tokenizers/qwen3");
    dapo_ = SharedData("dapo-math-17k-processed.parquet");
    math500_ = SharedData("valid_math500.parquet");
    if (tokenizer_.empty() || dapo_.empty() || math500_.empty()) GTEST_SKIP() << "shared data is absent";
    WriteFile(dir_.File("qwen3.json"), Qwen3ShapedConfig());
    WriteFile(dir_.File("pairs.jsonl"), "{\"prompt_ids\":[9707],\"response_ids\":[0]}\n");
    for (const char* name : {"student", "teacher"}) {
      std::string output;
      WriteFile(dir_.File("sft.yaml"),
                Concat("run: {name: ", name, ", dir: ", dir_.File(name), ", seed: ", name[0] == 's' ? 1 : 2, "}\n",
                       "model: {config: ", dir_.File("qwen3.json"), ", tokenizer: ", tokenizer_, "}\n",
                       "data: {train: [", dir_.File("pairs.jsonl"), "]}\n",
                       "trainer: {total_steps: 1, batch_size: 1, num_threads: 1}\n"));
      ASSERT_EQ(Run({"sft", "--config", dir_.File("sft.yaml")}, &output), 0) << output;
    }
    WriteFile(dir_.File("train.yaml"),
              Concat("run: {name: dapo, dir: ", dir_.File("run"), "}\n", "student: {model: ", dir_.File("student/model"), "}\n",
                     "data:\n  train: [", dapo_, "]\n  val: [", math500_, "]\n",
                     "  train_batch_size: 4\n  max_prompt_length: 512\n  max_response_length: 8\n",
                     "  filter_overlong_prompts: true\n  chat_template_kwargs: '{\"enable_thinking\": false}'\n",
                     "rollout: {n: 2, kv_cache_gb: 0.25}\n",
                     "trainer: {total_steps: 2, mini_batch_size: 2, num_threads: 1, head_workspace_mb: 32}\n",
                     "eval: {n: 2, num_prompts: 3, max_response_length: 8}\n"));
  }
  std::string tokenizer_, dapo_, math500_;
};

TEST_F(PublishedDataTest, DataShowsWhatARunWouldSee) {
  std::string output;
  ASSERT_EQ(Run({"data", "--config", dir_.File("train.yaml"), "--json", "--samples", "2"}, &output), 0) << output;
  const Json data = Json::parse(output.substr(output.find('{')));
  const Json& train = data["data"][0];
  EXPECT_EQ(train["files"][0]["num_rows"], 17917);
  // Counted with HF tokenizers 0.23.3 on the texts that transformers' template gives.
  EXPECT_EQ(train["num_overlong_dropped"], 53);
  EXPECT_EQ(train["num_records"], 17864);
  EXPECT_EQ(train["num_duplicates"], 519);
  EXPECT_EQ(train["prompt_tokens"]["total"], 2140153);
  EXPECT_EQ(train["prompt_tokens"]["median"], 110);
  EXPECT_EQ(train["sources"][0]["source"], "math_dapo");
  EXPECT_EQ(train["sources"][0]["num_answers"], train["num_records"]);
  const auto prompt = train["samples"][0]["prompt"].get<std::string>();
  EXPECT_EQ(prompt.find("<|im_start|>user\nIn triangle $ABC$"), 0u) << prompt;
  const std::string end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";  // thinking is off
  EXPECT_EQ(prompt.substr(prompt.size() - end.size()), end);
  EXPECT_EQ(train["samples"][0]["prompt_ids"][0], 151644);
  EXPECT_EQ(data["data"][1]["samples"][0]["prompt"].get<std::string>().find("<|im_start|>system\nYour task is"), 0u);
  ASSERT_EQ(Run({"data", "--config", dir_.File("train.yaml")}, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("17917"));
  EXPECT_THAT(output, HasSubstr("math_dapo"));
}

TEST_F(PublishedDataTest, TwoStepsOnDapo) {
  TeacherProcess teacher(dir_, dir_.File("teacher/model"));
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, {}), 0) << output;
  EXPECT_EQ(Losses(dir_.File("run")).size(), 2u);
  for (double loss : Losses(dir_.File("run"))) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_THAT(output, HasSubstr("duplicates="));
  const std::string metrics = ReadFile(dir_.File("run/metrics.jsonl"));
  for (const char* name : {"data/prompts", "data/overlong_dropped", "data/duplicates", "data/epoch", "eval/accuracy"}) {
    EXPECT_THAT(metrics, HasSubstr(name));
  }
}

TEST_F(PublishedDataTest, EvalOnMath500HereAndOnAServer) {
  std::string output;
  const std::string results = dir_.File("out/results.json"), responses = dir_.File("out/results.responses.jsonl");
  const std::vector<std::string> evaluate = {"eval", "--model", dir_.File("student/model"), "--data", math500_, "--output", results,
                                             "--set", "eval.num_prompts=5", "--set", "eval.n=2", "--set",
                                             "eval.max_response_length=8", "--set", "rollout.kv_cache_gb=0.25"};
  ASSERT_EQ(Run(evaluate, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("Avg@n"));
  const Json first = Json::parse(ReadFile(results));
  EXPECT_EQ(first["n"], 5);
  EXPECT_EQ(first["responses_per_problem"], 2);
  EXPECT_EQ(first["sources"][0]["source"], "math");
  EXPECT_EQ(first["temperature"], 0.7);
  EXPECT_GE(first["accuracy_high"], first["accuracy"]);
  const std::string journal = ReadFile(responses);
  EXPECT_EQ(std::count(journal.begin(), journal.end(), '\n'), 11);  // the configuration and 10 responses

  // Half of the responses lost: the rest is not generated again, and the numbers are the same.
  size_t at = 0;
  for (int line = 0; line < 6; ++line) at = journal.find('\n', at) + 1;
  WriteFile(responses, journal.substr(0, at + 10));
  ASSERT_EQ(Run(evaluate, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("resumed"));
  EXPECT_EQ(Json::parse(ReadFile(results)), first);
  // Another configuration does not touch them.
  std::vector<std::string> other = evaluate;
  other.insert(other.end(), {"--set", "eval.temperature=1"});
  EXPECT_EQ(Run(other, &output), 64);
  EXPECT_THAT(output, HasSubstr("eval.temperature is \"1.0\", there \"0.7\""));

  // The same problems as plain text from taopd-teacher's /v1/completions.
  TeacherProcess teacher(dir_, dir_.File("teacher/model"));
  const int port = Json::parse(ReadFile(dir_.File("ready.json"))).at("http_port").get<int>();
  ASSERT_EQ(Run({"eval", "--endpoint", Concat("http://127.0.0.1:", port), "--data", math500_, "--output", dir_.File("remote.json"),
                 "--set", "eval.num_prompts=3", "--set", "eval.n=1", "--set", "eval.max_response_length=4", "--set",
                 "data.apply_chat_template=never"}, &output), 0) << output;
  const Json remote = Json::parse(ReadFile(dir_.File("remote.json")));
  EXPECT_EQ(remote["n"], 3);
  EXPECT_LE(remote["response_length_mean"], 4);
  EXPECT_GE(remote["response_length_mean"], 1);
  EXPECT_EQ(Run({"eval", "--endpoint", "http://127.0.0.1:1", "--data", math500_, "--max-retries", "0"}, &output), 69);
  EXPECT_THAT(output, HasSubstr("http://127.0.0.1:1"));
}

}  // namespace
}  // namespace taopd::testing
