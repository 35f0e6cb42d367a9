// The step on tiny models, with real engines. The losses of 20 steps are committed: a refactoring
// must reproduce them bit for bit on the machine type that wrote them.

#include "trainer/step/train_step.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <map>
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

// Another processor or library version rounds differently; 20 steps amplify that. Losses are
// about 1.
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

std::shared_ptr<Decoder> Make(int64_t hidden_size, uint64_t seed, bool requires_grad,
                              const std::string& dtype = "float32") {
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
std::vector<double> RunSteps(const Setting& setting, int num_steps,
                             std::shared_ptr<Decoder>* trained = nullptr,
                             std::map<std::string, double>* last_metrics = nullptr) {
  at::set_num_threads(2);
  const TrainConfig& config = setting.config;
  std::shared_ptr<Decoder> student = Make(32, 1, true, setting.dtype);
  AdamW optimizer(student->Parameters(), config.optimizer);
  auto rollout_engine = MakeRolloutEngine(config, student);
  auto teacher_engine = MakeTorchEngine(Make(48, 2, false), EngineOptions());
  EXPECT_TRUE(rollout_engine.ok() && teacher_engine.ok());
  LocalRolloutEngine rollouts(rollout_engine->get());
  testing::EngineTeacher teacher(teacher_engine->get());
  testing::ShufflingTeacher shuffling(&teacher, config.data.train_batch_size * config.rollout.n,
                                      setting.shuffle_seed);

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
    auto result =
        Train(context, step, LearningRate(config.optimizer, step, num_steps), batch, &failure);
    EXPECT_TRUE(result.has_value()) << failure.status;
    if (!result) break;
    EXPECT_EQ(result->metrics[0].first, "loss/mean");
    losses.push_back(result->metrics[0].second);
    if (last_metrics != nullptr) *last_metrics = {result->metrics.begin(), result->metrics.end()};
  }
  if (trained != nullptr) *trained = student;
  return losses;
}

void ExpectSameWeights(const Decoder& a, const Decoder& b) {
  const auto left = a.Parameters(), right = b.Parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first;
}

TEST(TrainStep, TwentyStepsReproduceTheCommittedLosses) {
  const std::vector<double> losses = RunSteps(Setting(), 20);
  const std::string path = testing::SourcePath("tests/trainer/step/golden/losses.json");
  if (std::getenv("TAOPD_WRITE_GOLDEN") != nullptr) {
    testing::WriteFile(
        path, nlohmann::json{{"processor", Processor()}, {"losses", losses}}.dump(1) + "\n");
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

// Two mini-batches a step, each of one to many micro-batches: the weights of a mini-batch's rows do
// not depend on how it is cut.
TEST(TrainStep, MicroBatchesDoNotChangeTheGradient) {
  for (const char* aggregation : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}) {
    std::shared_ptr<Decoder> small, large;
    Setting setting;
    setting.config.objective.aggregation = aggregation;
    setting.config.trainer.micro_batch_tokens = 1;  // one sequence each
    const std::vector<double> losses = RunSteps(setting, 2, &small);
    setting.config.trainer.micro_batch_tokens = 1 << 20;
    const std::vector<double> expected = RunSteps(setting, 2, &large);
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << aggregation;
    const auto a = small->Parameters(), b = large->Parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      // Sums in another order, through AdamW's normalisation, which divides small gradients by
      // their size.
      EXPECT_TRUE(at::allclose(a[i].second, b[i].second, 1e-3, 1e-3)) << aggregation << a[i].first;
    }
  }
}

TEST(TrainStep, EverySupportTrains) {
  for (const char* support : {"teacher", "student", "union"}) {
    Setting setting;
    setting.config.objective.support = support;
    setting.config.objective.student_top_k = 3;
    std::map<std::string, double> metrics;
    const std::vector<double> losses = RunSteps(setting, 12, nullptr, &metrics);
    EXPECT_LT(losses.back(), losses.front()) << support;
    EXPECT_NEAR(metrics.at("policy/student_mass") + metrics.at("policy/student_tail"), 1, 1e-5)
        << support;
    EXPECT_NEAR(metrics.at("policy/teacher_mass") + metrics.at("policy/teacher_tail"), 1, 1e-5)
        << support;
    EXPECT_EQ(metrics.at("policy/derived_tails"), 0) << support;
    EXPECT_EQ(metrics.count("policy/overlap"), std::string(support) != "student" ? 1u : 0u);
    if (metrics.count("policy/overlap")) {
      EXPECT_GT(metrics.at("policy/overlap"), 0.1) << support;
      EXPECT_LE(metrics.at("policy/overlap"), 1) << support;
    }
  }
}

// The gradient of a parameter against autograd over dense log-softmaxes of both models.
TEST(TrainStep, GradientsOfEverySupportEqualADenseComputation) {
  at::set_num_threads(2);
  for (const char* kind : {"teacher", "student", "union", "full"}) {
    TrainConfig config = TinyConfig();
    config.rollout.n = 2;
    if (std::string(kind) == "full") {
      config.objective.name = "full";
    } else {
      config.objective.support = kind;
    }
    const std::shared_ptr<Decoder> student = Make(32, 1, true), teacher_model = Make(48, 2, false);
    ASSERT_OK_AND_ASSIGN(auto rollout_engine, MakeRolloutEngine(config, student));
    ASSERT_OK_AND_ASSIGN(auto teacher_engine, MakeTorchEngine(teacher_model, EngineOptions()));
    LocalRolloutEngine rollouts(rollout_engine.get());
    testing::EngineTeacher teacher(teacher_engine.get());
    PromptRecord a, b;
    a.prompt_ids = {5, 6, 7};
    b.prompt_ids = {9};
    const SupportOptions support = MakeSupportOptions(config, 40);
    const auto batch = ScoredBatch::Start(
        &rollouts, &teacher, MakeRolloutRequests(config, 0, {&a, &b}), support, "dense");
    ASSERT_OK(batch->WaitScored(0, batch->size(), [] { return absl::OkStatus(); }));
    batch->WaitIdle();

    RowSums sums;
    ForwardBackward(student.get(), MakeHeadOptions(config), *batch, 0, batch->size(),
                    {0.1, 0.2, 0.3, 0.4}, &sums);
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : student->Parameters()) {
      gradients.push_back(parameter.grad().clone());
      parameter.mutable_grad() = at::Tensor();
    }
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < batch->size(); ++i) {
      const Rollout& rollout = batch->item(i).rollout;
      const StudentInput input =
          MakeStudentInput({{&rollout.prompt_ids, &rollout.response_ids}}, at::kCPU);
      const auto log_probs = [&](Decoder& model) {
        const at::Tensor hidden_NH = model.Forward(input.batch).index_select(0, input.rows_N);
        return at::log_softmax(at::mm(hidden_NH, model.lm_head().t()).to(at::kDouble), 1);
      };
      const at::Tensor log_p_NV = log_probs(*student),
                       log_q_NV = log_probs(*teacher_model).detach();
      // The support by its definition: 1 where a token is compared.
      at::Tensor in_support_NV = at::zeros_like(log_q_NV);
      const auto add_top = [&](const at::Tensor& of) {
        in_support_NV.scatter_(1, std::get<1>(of.detach().topk(config.teacher.top_k, 1)), 1.0);
      };
      const std::string name = kind;
      if (name == "teacher" || name == "union") add_top(log_q_NV);
      if (name == "student" || name == "union") add_top(log_p_NV);
      if (name == "full") in_support_NV.fill_(1);
      const at::Tensor p_NV = log_p_NV.exp();
      at::Tensor row_N = (in_support_NV * p_NV * (log_p_NV - log_q_NV)).sum(1);
      if (name != "full") {
        const at::Tensor p_tail_N = ((1 - in_support_NV) * p_NV).sum(1);
        const at::Tensor q_tail_N = ((1 - in_support_NV) * log_q_NV.exp()).sum(1);
        row_N = row_N + p_tail_N * (p_tail_N.log() - q_tail_N.log());
      }
      loss = loss + 0.1 * static_cast<double>(i + 1) * row_N.sum();
    }
    loss.backward();
    EXPECT_NEAR(sums.weighted_loss, loss.item<double>(), 1e-5 * loss.item<double>()) << kind;
    const auto parameters = student->Parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      // float32 backward passes of the same loss.
      EXPECT_TRUE(at::allclose(gradients[i], parameters[i].second.grad(), 1e-3, 1e-5))
          << kind << parameters[i].first;
    }
  }
}

TEST(TrainStep, FullVocabularyReportsTheTopKAndTheTruncationGap) {
  Setting setting;
  setting.config.objective.name = "full";
  std::map<std::string, double> metrics;
  const std::vector<double> losses = RunSteps(setting, 12, nullptr, &metrics);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GT(metrics.at("policy/teacher_tail"), 0);  // of the top-k, not of the vocabulary
  EXPECT_NEAR(metrics.at("policy/full_kl"), metrics.at("loss/row_mean"), 1e-12);
  EXPECT_GT(metrics.at("policy/truncation_gap"), 0);
  EXPECT_GT(metrics.at("policy/overlap"), 0.1);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), metrics.at("rollout/tokens"));
}

TEST(TrainStep, FullKlOnASampleOfRows) {
  Setting setting;
  setting.config.objective.full_kl_rows = 7;
  setting.config.trainer.micro_batch_tokens = 20;
  std::map<std::string, double> metrics;
  std::shared_ptr<Decoder> measured, plain;
  RunSteps(setting, 2, &measured, &metrics);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), 7);
  EXPECT_GT(metrics.at("policy/truncation_gap"), 0);
  EXPECT_GT(metrics.at("policy/full_kl"), metrics.at("policy/truncation_gap"));
  // Measuring changes nothing.
  setting.config.objective.full_kl_rows = 0;
  RunSteps(setting, 2, &plain, &metrics);
  EXPECT_EQ(metrics.count("policy/full_kl"), 0u);
  ExpectSameWeights(*measured, *plain);

  // All rows of the first mini-batch of the first step, where nothing has been updated yet: with
  // one mini-batch, the bound is the loss.
  setting.config.objective.full_kl_rows = 1 << 20;
  setting.config.trainer.mini_batch_size = 6;
  RunSteps(setting, 1, nullptr, &metrics);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), metrics.at("rollout/tokens"));
  EXPECT_NEAR(metrics.at("policy/full_kl") - metrics.at("policy/truncation_gap"),
              metrics.at("loss/row_mean"), 1e-4);
  // A support of the whole vocabulary leaves no gap.
  setting.config.teacher.top_k = 40;
  RunSteps(setting, 1, nullptr, &metrics);
  EXPECT_NEAR(metrics.at("policy/truncation_gap"), 0, 1e-6);
}

TEST(TrainStep, TermsAddUp) {
  const auto first_step = [](std::vector<ObjectiveTermConfig> terms) {
    Setting setting;
    setting.config.objective.terms = std::move(terms);
    setting.config.trainer.mini_batch_size = 6;
    std::map<std::string, double> metrics;
    RunSteps(setting, 1, nullptr, &metrics);
    return metrics;
  };
  const auto ta = first_step({{"ta_opd", 1}}), token = first_step({{"sampled_token", 1}});
  const auto both = first_step({{"ta_opd", 0.75}, {"sampled_token", 0.5}});
  EXPECT_EQ(ta.count("loss/term/ta_opd"), 0u);
  EXPECT_NEAR(both.at("loss/term/ta_opd"), 0.75 * ta.at("loss/row_mean"), 1e-6);
  EXPECT_NEAR(both.at("loss/term/sampled_token"), 0.5 * token.at("loss/row_mean"), 1e-6);
  EXPECT_NEAR(both.at("loss/mean"), 0.75 * ta.at("loss/mean") + 0.5 * token.at("loss/mean"), 1e-6);
  EXPECT_EQ(ta.at("loss/mean"), first_step({}).at("loss/mean"));
}

TEST(TrainStep, EveryRegisteredObjectiveTrains) {
  for (const ObjectiveInfo& info : AllObjectives()) {
    Setting setting;
    setting.config.objective.name = std::string(info.name);
    for (double loss : RunSteps(setting, 1)) EXPECT_TRUE(std::isfinite(loss)) << info.name;
  }
}

TEST(TrainStep, EveryAggregationObjectiveAndDtypeTrains) {
  for (const char* objective : {"normalized", "sc_ta_opd", "ta_opd"}) {
    for (const char* aggregation : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}) {
      Setting setting;
      setting.config.objective.name = objective;
      setting.config.objective.aggregation = aggregation;
      for (double loss : RunSteps(setting, 2))
        EXPECT_TRUE(std::isfinite(loss)) << objective << aggregation;
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
    void Score(TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)> done) override {
      done(Unavailable("dead"));
    }
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
  EXPECT_FALSE(
      Train(context, 0, 1e-3, std::vector<const PromptRecord*>(6, &prompt), &failure).has_value());
  EXPECT_FALSE(failure.weights_changed);
  EXPECT_ERROR(failure.status, absl::StatusCode::kUnavailable, "dead");
  ExpectSameWeights(*student, *untouched);
}

TEST(MakeStudentInput, RowsPredictTheResponse) {
  const std::vector<int32_t> prompt_a = {5, 6, 7}, response_a = {8, 9}, prompt_b = {4},
                             response_b = {3};
  const StudentInput input =
      MakeStudentInput({{&prompt_a, &response_a}, {&prompt_b, &response_b}}, at::kCPU);
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
    for (const RolloutRequest& request : MakeRolloutRequests(config, step, {&prompt, &prompt}))
      seeds.insert(request.sampling.seed);
  }
  EXPECT_EQ(seeds.size(), 12u);
}

}  // namespace
}  // namespace taopd
