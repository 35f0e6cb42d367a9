// The step on tiny models, with real engines. The losses of 20 steps are committed: a refactoring must
// reproduce them bit for bit on the machine type that wrote them.

#include "trainer/step/train_step.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "common/engine/torch_engine.h"
#include "tests/support/fake_teachers.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/run_setup.h"

namespace taopd {
namespace {

// Another processor or library version rounds differently; 20 steps amplify that. Losses are about 1.
constexpr double kOtherMachineTolerance = 1e-3;

ModelConfig TinyModel(int64_t hidden_size) {
  ModelConfig model;
  model.architecture = "Qwen3ForCausalLM";
  model.vocab_size = 40;
  model.hidden_size = hidden_size;
  model.intermediate_size = 2 * hidden_size;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 8;
  model.max_position_embeddings = 64;
  model.qk_norm = true;
  model.initializer_range = 0.2;
  model.eos_token_ids = {2};
  return model;
}

std::shared_ptr<Decoder> Make(int64_t hidden_size, uint64_t seed, bool requires_grad, const std::string& dtype = "float32") {
  DecoderOptions options;
  options.device = "cpu";
  options.dtype = dtype;
  options.requires_grad = requires_grad;
  auto decoder = MakeDecoder(TinyModel(hidden_size), options, RandomStream(seed));
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *std::move(decoder);
}

TrainConfig TinyConfig() {
  TrainConfig config;
  config.run.seed = 5;
  config.teacher.top_k = 4;
  config.data.train_batch_size = 6;
  config.data.max_prompt_length = 8;
  config.data.max_response_length = 12;
  config.rollout.n = 3;
  config.trainer.mini_batch_size = 3;
  config.trainer.micro_batch_tokens = 60;
  config.optimizer.lr = 3e-3;
  config.eval.measure = "none";
  return config;
}

// What decides how the libraries round: vendor, family, model and the instruction set in use.
std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string description = at::get_cpu_capability(), line;
  while (std::getline(file, line) && !line.empty()) {
    for (const char* key : {"vendor_id", "cpu family", "model\t"}) {
      if (line.rfind(key, 0) == 0) description += "," + line.substr(line.find(':') + 1);
    }
  }
  return description;
}

struct Setting {
  TrainConfig config = TinyConfig();
  std::string dtype = "float32";
  uint64_t shuffle_seed = 0;  // 0: scores arrive as they come
};

// Runs `num_steps` steps and returns the losses.
std::vector<double> RunSteps(const Setting& setting, int num_steps, std::shared_ptr<Decoder>* trained = nullptr) {
  at::set_num_threads(2);
  const TrainConfig& config = setting.config;
  std::shared_ptr<Decoder> student = Make(32, 1, true, setting.dtype);
  AdamW optimizer(student->Parameters(), config.optimizer);
  auto rollout_engine = MakeRolloutEngine(config, student);
  auto teacher_engine = MakeTorchEngine(Make(48, 2, false), EngineOptions());
  EXPECT_TRUE(rollout_engine.ok() && teacher_engine.ok());
  LocalRolloutEngine rollouts(rollout_engine->get());
  testing::EngineTeacher teacher(teacher_engine->get());
  testing::ShufflingTeacher shuffling(&teacher, config.data.train_batch_size * config.rollout.n, setting.shuffle_seed);

  std::vector<PromptRecord> prompts(16);
  RandomStream random(9);
  for (PromptRecord& prompt : prompts) {
    prompt.prompt_ids.resize(1 + random.NextBelow(7));
    for (int32_t& id : prompt.prompt_ids) id = 3 + static_cast<int32_t>(random.NextBelow(37));
  }
  EpochOrder order(static_cast<int64_t>(prompts.size()), 4, true);
  StepContext context;
  context.config = &config;
  context.student = student.get();
  context.optimizer = &optimizer;
  context.rollout_engine = &rollouts;
  context.teacher = setting.shuffle_seed == 0 ? static_cast<TeacherClient*>(&teacher) : &shuffling;
  context.head = MakeHeadOptions(config);
  context.aggregation = *ParseAggregation(config.objective.aggregation);
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step) {
    std::vector<const PromptRecord*> batch;
    for (int64_t index : order.Next(config.data.train_batch_size)) batch.push_back(&prompts[index]);
    StepFailure failure;
    auto result = Train(context, step, LearningRate(config.optimizer, step, num_steps), batch, &failure);
    EXPECT_TRUE(result.has_value()) << failure.status;
    if (!result) break;
    EXPECT_EQ(result->metrics[0].first, "loss/mean");
    losses.push_back(result->metrics[0].second);
  }
  if (trained != nullptr) *trained = student;
  return losses;
}

void ExpectSameWeights(const Decoder& a, const Decoder& b) {
  const auto left = a.Parameters(), right = b.Parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first;
}

TEST(TrainStep, TwentyStepsReproduceTheCommittedLosses) {
  const std::vector<double> losses = RunSteps(Setting(), 20);
  const std::string path = testing::SourcePath("tests/trainer/step/golden/losses.json");
  if (std::getenv("TAOPD_WRITE_GOLDEN") != nullptr) {
    testing::WriteFile(path, nlohmann::json{{"processor", Processor()}, {"losses", losses}}.dump(1) + "\n");
    GTEST_SKIP() << "wrote " << path;
  }
  const auto golden = nlohmann::json::parse(testing::ReadFile(path));
  const auto expected = golden.at("losses").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), expected.size());
  const bool same_machine = golden.at("processor") == Processor();
  for (size_t i = 0; i < losses.size(); ++i) {
    if (same_machine) {
      EXPECT_EQ(losses[i], expected[i]) << "step " << i;
    } else {
      EXPECT_NEAR(losses[i], expected[i], kOtherMachineTolerance) << "step " << i;
    }
  }
  EXPECT_LT(losses.back(), 0.8 * losses.front());  // and it learns
}

TEST(TrainStep, ArrivalOrderOfScoresDoesNotMatter) {
  std::shared_ptr<Decoder> plain, shuffled;
  const std::vector<double> expected = RunSteps(Setting(), 4, &plain);
  for (uint64_t seed : {1, 2}) {
    Setting setting;
    setting.shuffle_seed = seed;
    EXPECT_EQ(RunSteps(setting, 4, &shuffled), expected);
    ExpectSameWeights(*plain, *shuffled);
  }
}

TEST(TrainStep, MicroBatchesDoNotChangeTheGradient) {
  std::shared_ptr<Decoder> small, large;
  Setting setting;
  setting.config.trainer.micro_batch_tokens = 1;  // one sequence each
  RunSteps(setting, 2, &small);
  setting.config.trainer.micro_batch_tokens = 1 << 20;
  RunSteps(setting, 2, &large);
  const auto a = small->Parameters(), b = large->Parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    // Sums in another order, through AdamW's normalisation, which divides small gradients by their size.
    EXPECT_TRUE(at::allclose(a[i].second, b[i].second, 1e-3, 1e-3)) << a[i].first;
  }
}

TEST(TrainStep, EveryAggregationObjectiveAndDtypeTrains) {
  for (const char* objective : {"normalized", "sc_ta_opd", "ta_opd"}) {
    for (const char* aggregation : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}) {
      Setting setting;
      setting.config.objective.name = objective;
      setting.config.objective.aggregation = aggregation;
      for (double loss : RunSteps(setting, 2)) EXPECT_TRUE(std::isfinite(loss)) << objective << aggregation;
    }
  }
  Setting bfloat16;
  bfloat16.dtype = "bfloat16";
  const std::vector<double> losses = RunSteps(bfloat16, 12);
  EXPECT_LT(losses.back(), losses.front());
  Setting single;
  single.config.rollout.n = 1;
  single.config.trainer.mini_batch_size = 6;
  EXPECT_EQ(RunSteps(single, 2).size(), 2u);
}

TEST(TrainStep, ADeadTeacherLeavesTheWeightsUntouched) {
  class DeadTeacher final : public TeacherClient {
   public:
    absl::StatusOr<TeacherInfo> Connect(absl::Duration) override { return TeacherInfo(); }
    void Score(TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)> done) override { done(Unavailable("dead")); }
    TeacherClientStats stats() const override { return {}; }
  } teacher;
  const TrainConfig config = TinyConfig();
  std::shared_ptr<Decoder> student = Make(32, 1, true);
  const std::shared_ptr<Decoder> untouched = Make(32, 1, true);
  AdamW optimizer(student->Parameters(), config.optimizer);
  ASSERT_OK_AND_ASSIGN(auto engine, MakeRolloutEngine(config, student));
  LocalRolloutEngine rollouts(engine.get());
  PromptRecord prompt;
  prompt.prompt_ids = {5, 6};
  StepContext context;
  context.config = &config;
  context.student = student.get();
  context.optimizer = &optimizer;
  context.rollout_engine = &rollouts;
  context.teacher = &teacher;
  context.head = MakeHeadOptions(config);
  StepFailure failure;
  EXPECT_FALSE(Train(context, 0, 1e-3, std::vector<const PromptRecord*>(6, &prompt), &failure).has_value());
  EXPECT_FALSE(failure.weights_changed);
  EXPECT_ERROR(failure.status, absl::StatusCode::kUnavailable, "dead");
  ExpectSameWeights(*student, *untouched);
}

TEST(MakeStudentInput, RowsPredictTheResponse) {
  const std::vector<int32_t> prompt_a = {5, 6, 7}, response_a = {8, 9}, prompt_b = {4}, response_b = {3};
  const StudentInput input = MakeStudentInput({{&prompt_a, &response_a}, {&prompt_b, &response_b}}, at::kCPU);
  EXPECT_EQ(input.batch.cu_seqlens, (std::vector<int64_t>{0, 4, 5}));
  EXPECT_TRUE(at::equal(input.batch.token_ids_T, at::tensor({5, 6, 7, 8, 4}, at::kLong)));
  // Token 7 (row 2) predicts 8, token 8 (row 3) predicts 9, token 4 (row 4) predicts 3.
  EXPECT_TRUE(at::equal(input.rows_N, at::tensor({2, 3, 4}, at::kLong)));
}

TEST(MakeRolloutRequests, SeedsAreNamedByStepPromptAndSample) {
  const TrainConfig config = TinyConfig();
  PromptRecord prompt;
  prompt.prompt_ids = {5};
  std::set<uint64_t> seeds;
  for (int64_t step : {0, 1}) {
    for (const RolloutRequest& request : MakeRolloutRequests(config, step, {&prompt, &prompt})) seeds.insert(request.sampling.seed);
  }
  EXPECT_EQ(seeds.size(), 12u);
}

}  // namespace
}  // namespace taopd
