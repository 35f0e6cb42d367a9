// Tests of `data`, `train` and `eval` on the unchanged data, tokenizer and chat template of the
// paper's experiments, with a Qwen3-shaped student and teacher of random weights. Skipped if the
// published files are absent.

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/integration/model_configs.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class PublishedDataTest : public TrainerTest {
 protected:
  void SetUp() override {
    tokenizer_ = SharedData("tokenizers/qwen3");
    dapo_ = SharedData("dapo-math-17k-processed.parquet");
    math500_ = SharedData("valid_math500.parquet");
    if (tokenizer_.empty() || dapo_.empty() || math500_.empty())
      GTEST_SKIP() << "shared data is absent";
    teacher_model_ = MakeModel(Qwen3Config(kQwenVocabulary), 2, tokenizer_);
    student_model_ = MakeModel(Qwen3Config(kQwenVocabulary), 1, tokenizer_);
    WriteFile(dir_.File("train.yaml"),
              Concat("run: {name: dapo, dir: ", dir_.File("run"), "}\n",
                     "student: {model: ", student_model_, "}\n", "data:\n  train: [", dapo_,
                     "]\n  val: [", math500_, "]\n",
                     "  train_batch_size: 4\n  max_prompt_length: 512\n  max_response_length: 8\n",
                     "  filter_overlong_prompts: true\n  chat_template_kwargs: "
                     "'{\"enable_thinking\": false}'\n",
                     "rollout: {n: 2, kv_cache_gb: 0.25}\n",
                     "trainer: {total_steps: 2, mini_batch_size: 2, num_threads: 1, "
                     "head_workspace_mb: 32}\n",
                     "eval: {n: 2, num_prompts: 3, max_response_length: 8}\n"));
  }
  // Makes a model of nearly random weights. The same arguments give the same directory, which the
  // tests of a process share.
  static std::string MakeModel(Json config, int seed, const std::string& tokenizer) {
    static const TempDir models;
    static std::map<std::string, std::string> made;
    config["max_position_embeddings"] = 4096;
    std::string& model = made[Concat(seed, " ", tokenizer, " ", config.dump())];
    if (model.empty())
      model = MakeRandomModel(models.File(Concat(made.size())), config, tokenizer, seed);
    return model;
  }

  static constexpr int64_t kQwenVocabulary = 151936;  // padded
  static constexpr int64_t kQwenTokens = 151669;
  // The data of train.yaml.
  static constexpr int64_t kDapoPrompts = 17864, kDapoOverlong = 53, kDapoDuplicates = 519;
  std::string tokenizer_, dapo_, math500_, teacher_model_, student_model_;
};

TEST_F(PublishedDataTest, DataShowsWhatARunWouldSee) {
  ASSERT_TRUE(Runs({"data", "--config", dir_.File("train.yaml"), "--json", "--samples", "2"}));
  const Json data = Json::parse(output_.substr(output_.find('{')));
  const Json& train = data["data"][0];
  EXPECT_EQ(train["files"][0]["num_rows"], 17917);
  // Counted with HF tokenizers 0.23.3 on the texts of transformers' template.
  EXPECT_EQ(train["num_overlong_dropped"], kDapoOverlong);
  EXPECT_EQ(train["num_records"], kDapoPrompts);
  EXPECT_EQ(train["num_duplicates"], kDapoDuplicates);
  EXPECT_EQ(train["prompt_tokens"]["total"], 2140153);
  EXPECT_EQ(train["prompt_tokens"]["median"], 110);
  EXPECT_EQ(train["sources"][0]["source"], "math_dapo");
  EXPECT_EQ(train["sources"][0]["num_answers"], train["num_records"]);
  const auto prompt = train["samples"][0]["prompt"].get<std::string>();
  EXPECT_EQ(prompt.find("<|im_start|>user\nIn triangle $ABC$"), 0u) << prompt;
  const std::string end =
      "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";  // thinking is off
  EXPECT_EQ(prompt.substr(prompt.size() - end.size()), end);
  EXPECT_EQ(train["samples"][0]["prompt_ids"][0], 151644);
  EXPECT_EQ(data["data"][1]["samples"][0]["prompt"].get<std::string>().find(
                "<|im_start|>system\nYour task is"),
            0u);
}

TEST_F(PublishedDataTest, TwoStepsOnDapo) {
  StartTeacher(teacher_model_);
  ASSERT_TRUE(Trains());
  EXPECT_EQ(Losses("run").size(), 2u);
  EXPECT_THAT(output_, HasSubstr(Concat("duplicates=", kDapoDuplicates)));
  EXPECT_EQ(LastMetric("run", "data/prompts"), kDapoPrompts);
  EXPECT_EQ(LastMetric("run", "data/overlong_dropped"), kDapoOverlong);
  EXPECT_EQ(LastMetric("run", "data/duplicates"), kDapoDuplicates);
  EXPECT_EQ(LastMetric("run", "data/epoch"), 0);
  EXPECT_GE(LastMetric("run", "eval/accuracy"), 0);
}

struct Architecture {
  const char* name;
  Json (*config)(int64_t vocab_size);
  int64_t vocab_size;
  bool other_tokenizer;  // the student goes on with the teacher's tokenizer and has fewer tokens at
                         // first
};

class ArchitecturesTest : public PublishedDataTest,
                          public ::testing::WithParamInterface<Architecture> {};

// Trains the paper's students by shape and checks the metrics of each step and the exported model.
TEST_P(ArchitecturesTest, TwoSteps) {
  const Architecture& architecture = GetParam();
  const std::string student =
      MakeModel(architecture.config(architecture.vocab_size), 1,
                architecture.other_tokenizer ? SharedData("tokenizers/llama3.1") : tokenizer_);
  // With random weights, the padding rows of a published vocabulary are as probable as any other
  // row, and a student that grew to the tokenizer's size lacks them.
  StartTeacher(architecture.other_tokenizer ? MakeModel(Qwen3Config(kQwenTokens), 2, tokenizer_)
                                            : teacher_model_);
  // The 500 rows of the evaluation take less time to read than the 17,917 of training.
  Strings settings = {Concat("student.model=", student), Concat("data.train=[", math500_, "]"),
                      "eval.measure=none", "optimizer.lr=0.001"};
  if (architecture.other_tokenizer) settings.push_back(Concat("student.tokenizer=", tokenizer_));
  ASSERT_TRUE(Trains(settings));

  int64_t step = 0;
  for (const auto& row : Lines("run/metrics.jsonl")) {
    EXPECT_EQ(row["step"], ++step);
    for (const auto& [name, value] : row.items()) {
      EXPECT_TRUE(value.is_number() && std::isfinite(value.get<double>())) << name << " " << value;
    }
    EXPECT_EQ(row["data/prompts"], 496);  // four of the 500 are too long
    EXPECT_GT(row["loss/mean"], 0.0);
    EXPECT_GT(row["loss/grad_norm"], 0.0);
    // Random weights give nearly uniform distributions.
    EXPECT_GT(row["policy/entropy"], 0.5 * std::log(kQwenVocabulary));
    EXPECT_LT(row["policy/entropy"], std::log(kQwenVocabulary));
    for (const char* name : {"policy/student_tail", "policy/teacher_tail"}) {
      EXPECT_GT(row[name], 0.0) << name;
      EXPECT_LT(row[name], 1.0) << name;
    }
    EXPECT_LE(row["rollout/response_length_mean"], 8);
  }
  EXPECT_EQ(step, 2);

  const std::string model = dir_.File("run/model");
  const Json config = Json::parse(ReadFile(model + "/config.json")),
             start = Json::parse(ReadFile(student + "/config.json"));
  EXPECT_EQ(config["architectures"], start["architectures"]);
  EXPECT_EQ(config["vocab_size"],
            architecture.other_tokenizer ? kQwenTokens : architecture.vocab_size);
  if (architecture.other_tokenizer) {
    EXPECT_EQ(config["eos_token_id"], 151645);
  }
  EXPECT_EQ(FileHash(model + "/tokenizer.json"), FileHash(tokenizer_ + "/tokenizer.json"));
  EXPECT_EQ(FileHash(model + "/tokenizer_config.json"),
            FileHash(tokenizer_ + "/tokenizer_config.json"));
  EXPECT_NE(FileHash(model + "/model.safetensors"), FileHash(student + "/model.safetensors"));
  EXPECT_TRUE(
      Runs({"generate", "--model", model, "--prompt", "What is 2 + 3?", "--max-new-tokens", "3"}));
}

INSTANTIATE_TEST_SUITE_P(Students, ArchitecturesTest,
                         ::testing::Values(Architecture{"qwen2", Qwen25Config, 151936, false},
                                           Architecture{"qwen3_moe", Qwen3MoeConfig, 151936, false},
                                           Architecture{"llama31", Llama31Config, 128256, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(PublishedDataTest, EvalOnMath500HereAndOnAServer) {
  const std::string results = dir_.File("out/results.json"),
                    responses = dir_.File("out/results.responses.jsonl");
  const Strings evaluate = With(
      {"eval", "--model", student_model_, "--data", math500_, "--output", results},
      Words("eval.num_prompts=5 eval.n=2 eval.max_response_length=8 rollout.kv_cache_gb=0.25"));
  ASSERT_TRUE(Runs(evaluate));
  EXPECT_THAT(output_, HasSubstr("Avg@n"));
  const Json first = Json::parse(ReadFile(results));
  EXPECT_EQ(first["n"], 5);
  EXPECT_EQ(first["responses_per_problem"], 2);
  EXPECT_EQ(first["sources"][0]["source"], "math");
  EXPECT_EQ(first["temperature"], 0.7);
  EXPECT_GE(first["accuracy_high"], first["accuracy"]);
  const std::string journal = ReadFile(responses);
  EXPECT_EQ(std::count(journal.begin(), journal.end(), '\n'),
            11);  // the configuration and 10 responses

  // Half of the responses are lost. The rest is not generated again, and the numbers are the same.
  size_t at = 0;
  for (int line = 0; line < 6; ++line) at = journal.find('\n', at) + 1;
  WriteFile(responses, journal.substr(0, at + 10));
  ASSERT_TRUE(Runs(evaluate));
  EXPECT_THAT(output_, HasSubstr("resumed"));
  EXPECT_EQ(Json::parse(ReadFile(results)), first);
  // An evaluation with another configuration leaves them alone.
  ExpectFails(With(evaluate, {"eval.temperature=1"}), 64,
              "eval.temperature is \"1.0\", there \"0.7\"");

  // The same problems as plain text from taopd-teacher's /v1/completions.
  StartTeacher(teacher_model_);
  const std::string server = Concat("http://127.0.0.1:", teacher().http_port());
  ASSERT_TRUE(Runs(
      With({"eval", "--endpoint", server, "--data", math500_, "--output", dir_.File("remote.json")},
           Words("eval.num_prompts=3 eval.n=1 eval.max_response_length=4 "
                 "data.apply_chat_template=never"))));
  const Json remote = Json::parse(ReadFile(dir_.File("remote.json")));
  EXPECT_EQ(remote["n"], 3);
  EXPECT_LE(remote["response_length_mean"], 4);
  EXPECT_GE(remote["response_length_mean"], 1);
  ExpectFails(
      {"eval", "--endpoint", "http://127.0.0.1:1", "--data", math500_, "--max-retries", "0"}, 69,
      "http://127.0.0.1:1");
}

// Tests with the quickstart's model, which has 64 positions, no chat template and a tokenizer that
// lacks most characters. Losses in the problems are refused by default, and counted if they are
// allowed.
class QuickstartModelTest : public TrainerTest {
 protected:
  void SetUp() override {
    math500_ = SharedData("valid_math500.parquet");
    if (math500_.empty()) GTEST_SKIP() << "shared data is absent";
    MakeQuickstart("trainer.total_steps=2");
  }
  Strings Arguments(const std::string& settings) {
    return With({"eval", "--model", dir_.File("quick_student/model"), "--data", math500_,
                 "--output", dir_.File("results.json")},
                Words(settings));
  }
  std::string math500_;
};

TEST_F(QuickstartModelTest, EvalOnMath500) {
  ExpectFails(Arguments(""), 64,
              "eval.max_response_length 8192 leaves no room for a prompt in the model's "
              "max_position_embeddings 64");
  ExpectFails(Arguments("eval.max_response_length=24"), 65, "apply_chat_template never");
  const std::string plain = "eval.max_response_length=24 data.apply_chat_template=never";
  ExpectFails(Arguments(plain), 65, "more than max_prompt_length 40");
  EXPECT_THAT(output_, HasSubstr("max_position_embeddings 64 less eval.max_response_length 24"));

  ASSERT_TRUE(Runs(Arguments(plain + " data.truncation=left eval.n=1")));
  EXPECT_THAT(output_, HasSubstr("  math"));
  EXPECT_THAT(output_,
              HasSubstr("500 of 500 prompts are cut, by "));  // each has the paper's system prompt
  EXPECT_THAT(output_,
              HasSubstr("500 of 500 prompts lack characters that the tokenizer has no token for"));
  const Json results = Json::parse(ReadFile(dir_.File("results.json")));
  EXPECT_EQ(results["n"], 500);
  EXPECT_EQ(results["responses_per_problem"], 1);
  EXPECT_LE(results["accuracy"], 0.02);
  EXPECT_LE(results["response_length_mean"], 24);
  EXPECT_GT(results["response_length_mean"], 1);
  const Json& prompts = results["prompts"];
  EXPECT_EQ(prompts["num_overlong_dropped"], 0);
  EXPECT_EQ(prompts["num_with_unknown_bytes"], 500);
  EXPECT_EQ(prompts["num_truncated"], 500);
  EXPECT_GT(prompts["num_truncated_tokens"], 500);

  // Nothing is left if they are dropped.
  ExpectFails(Arguments(plain + " data.filter_overlong_prompts=true"), 65,
              "500 over-long prompts dropped");
}

}  // namespace
}  // namespace taopd::testing
