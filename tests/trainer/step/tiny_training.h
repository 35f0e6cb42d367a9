// Trains tiny random models with real engines, for tests of steps and of the runs around them.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/torch_engine.h"
#include "tests/support/fake_teachers.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/epoch_order.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/setup/engine_options.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/train_step.h"

namespace taopd::testing {

inline constexpr int64_t kTinyVocabulary = 40;

inline std::shared_ptr<Decoder> MakeTinyModel(int64_t hidden_size, uint64_t seed,
                                              bool requires_grad,
                                              const std::string& dtype = "float32",
                                              int64_t vocab_size = kTinyVocabulary,
                                              int64_t lora_rank = 0) {
  const ModelConfig model = {.architecture = "Qwen3ForCausalLM",
                             .vocab_size = vocab_size,
                             .hidden_size = hidden_size,
                             .intermediate_size = 2 * hidden_size,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 4,
                             .num_key_value_heads = 2,
                             .head_dim = 8,
                             .max_position_embeddings = 64,
                             .qk_norm = true,
                             .initializer_range = 0.2,
                             .eos_token_ids = {2}};
  DecoderOptions options = {.dtype = dtype, .device = "cpu", .requires_grad = requires_grad};
  if (lora_rank > 0) {
    options.lora.emplace().config.rank = lora_rank;
    options.lora->config.alpha = 2.0 * static_cast<double>(lora_rank);
    options.lora->config.target_modules = {kAllLinear};
  }
  auto decoder = MakeDecoder(model, options, RandomStream(seed));
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *std::move(decoder);
}

// With lora_rank > 0, adapters are trained instead of the weights.
inline std::shared_ptr<Decoder> MakeTinyStudent(const std::string& dtype = "float32",
                                                int64_t lora_rank = 0) {
  return MakeTinyModel(32, 1, /*requires_grad=*/true, dtype, kTinyVocabulary, lora_rank);
}
inline std::shared_ptr<Decoder> MakeTinyTeacher(int64_t vocab_size = kTinyVocabulary) {
  return MakeTinyModel(48, 2, /*requires_grad=*/false, "float32", vocab_size);
}

// Returns a configuration with two mini-batches per step, each with three prompts and three
// responses per prompt.
inline TrainConfig TinyConfig() {
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
  config.eval.measure = EvalMeasure::kNone;
  return config;
}

struct TinySetting {
  TrainConfig config = TinyConfig();
  std::string dtype = "float32";
  int64_t lora_rank = 0;      // above 0: adapters are trained
  uint64_t shuffle_seed = 0;  // if 0, scores arrive in their natural order
  AdamWOptions shard = {};    // for several ranks
  int num_threads = 2;
};

// The models, engines and prompts of a run, and the context of its steps.
class TinyTraining {
 public:
  explicit TinyTraining(const TinySetting& setting)
      : config_(OnThreads(setting)),
        student_(MakeTinyStudent(setting.dtype, setting.lora_rank)),
        optimizer_(student_->TrainedParameters(), config_.optimizer, setting.shard),
        rollout_engine_(Value(MakeRolloutEngine(config_, student_))),
        rollouts_(rollout_engine_.get()),
        teacher_(MakeEngineTeacher(MakeTinyTeacher())),
        shuffling_(teacher_.get(), config_.data.train_batch_size * config_.rollout.n,
                   setting.shuffle_seed),
        prompts_(16),
        order_(static_cast<int64_t>(prompts_.size()), 4, true) {
    RandomStream random(9);
    for (PromptRecord& prompt : prompts_) {
      prompt.prompt_ids.resize(1 + random.NextBelow(7));
      prompt.id = "prompt-" + std::to_string(prompt.prompt_ids.size());
      for (int32_t& id : prompt.prompt_ids) id = 3 + static_cast<int32_t>(random.NextBelow(37));
    }
    context.config = &config_;
    context.student = student_.get();
    context.optimizer = &optimizer_;
    context.group = group_.get();
    context.rollout_engine = &rollouts_;
    context.teacher = setting.shuffle_seed == 0 ? teacher_.get() : &shuffling_;
    context.head = MakeHeadOptions(config_);
    context.aggregation = config_.objective.aggregation;
  }

  std::vector<const PromptRecord*> NextPrompts() {
    std::vector<const PromptRecord*> batch;
    for (const int64_t index : order_.Next(config_.data.train_batch_size)) {
      batch.push_back(&prompts_[index]);
    }
    return batch;
  }
  // Generates and scores the rollouts of a step's next prompts, which must not fail.
  std::shared_ptr<ScoredBatch> NextScored(const SupportOptions& support, const std::string& name) {
    auto batch = ScoredBatch::Start(context.rollout_engine,
                                    MakeRolloutRequests(*context.config, 0, NextPrompts()),
                                    {.teacher = context.teacher, .support = support, .name = name});
    EXPECT_TRUE(batch->WaitScored(0, batch->size(), context.on_wait).ok());
    batch->WaitIdle();
    return batch;
  }
  // Runs a step, which must not fail, on the next prompts.
  StepResult Step(int64_t step, int64_t num_steps) {
    auto result = TrainOneStep(context, step, LearningRate(config_.optimizer, step, num_steps),
                               NextPrompts());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : StepResult();
  }

  const std::shared_ptr<Decoder>& student() const { return student_; }
  const AdamW& optimizer() const { return optimizer_; }
  TeacherClient* teacher() { return teacher_.get(); }
  const std::vector<PromptRecord>& prompts() const { return prompts_; }
  const EpochOrder& order() const { return order_; }

  StepContext context;  // a test may replace parts of it

 private:
  // Sets the number of threads before anything is computed, because it determines the order of
  // sums.
  static const TrainConfig& OnThreads(const TinySetting& setting) {
    at::set_num_threads(setting.num_threads);
    return setting.config;
  }
  template <typename T>
  static T Value(absl::StatusOr<T> value) {
    EXPECT_TRUE(value.ok()) << value.status();
    return *std::move(value);
  }

  const TrainConfig config_;
  const std::unique_ptr<ProcessGroup> group_ = ProcessGroup::Alone();
  const std::shared_ptr<Decoder> student_;
  AdamW optimizer_;
  const std::unique_ptr<InferenceEngine> rollout_engine_;
  LocalRolloutEngine rollouts_;
  const std::unique_ptr<TeacherClient> teacher_;
  ShufflingTeacher shuffling_;
  std::vector<PromptRecord> prompts_;
  EpochOrder order_;
};

// Passes the rollouts of an engine through a function of the test's, and cancels none of them.
class PassedRollouts final : public RolloutEngine {
 public:
  using Pass = std::function<absl::StatusOr<Rollout>(int64_t index, absl::StatusOr<Rollout>)>;
  PassedRollouts(RolloutEngine* inner, Pass pass) : inner_(inner), pass_(std::move(pass)) {}
  void Generate(std::vector<RolloutRequest> requests, Done done) override {
    inner_->Generate(std::move(requests), [this, done = std::move(done)](
                                              int64_t index, absl::StatusOr<Rollout> rollout) {
      done(index, pass_(index, std::move(rollout)));
    });
  }

 private:
  RolloutEngine* const inner_;
  const Pass pass_;
};

inline std::map<std::string, double> ByName(const StepResult& result) {
  return {result.metrics.begin(), result.metrics.end()};
}

// Runs `num_steps` steps and returns their losses.
inline std::vector<double> RunSteps(const TinySetting& setting, int num_steps,
                                    std::shared_ptr<Decoder>* trained = nullptr,
                                    std::map<std::string, double>* last_metrics = nullptr) {
  TinyTraining training(setting);
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step) {
    const auto metrics = ByName(training.Step(step, num_steps));
    losses.push_back(metrics.at("loss/mean"));
    if (last_metrics != nullptr) *last_metrics = metrics;
  }
  if (trained != nullptr) *trained = training.student();
  return losses;
}

// Returns the student with an optimizer.
inline Student MakeTrainedStudent(const std::string& dtype, const AdamWOptions& options) {
  Student student = {.decoder = MakeTinyStudent(dtype)};
  student.optimizer =
      std::make_unique<AdamW>(student.decoder->Parameters(), OptimizerConfig(), options);
  return student;
}

// Starts a run, or a rank of it, always with the same student.
inline void StartTinyRun(CheckpointedRun* run) {
  const auto make_student = [run](const AdamWOptions& shard) {
    return MakeTrainedStudent(run->options().dtype, shard);
  };
  ASSERT_OK(run->Start(StartMode(), {"student.model", make_student}));
  ASSERT_OK(run->OpenOutput());
}

inline bool SameWeights(const Decoder& a, const Decoder& b) {
  auto left = a.Parameters(), right = b.Parameters();
  for (auto [all, decoder] : {std::pair(&left, &a), {&right, &b}}) {
    if (decoder->lora() == nullptr) continue;
    const auto adapters = decoder->TrainedParameters();
    all->insert(all->end(), adapters.begin(), adapters.end());
  }
  EXPECT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    if (!at::equal(left[i].second, right[i].second)) return false;
  }
  return true;
}

}  // namespace taopd::testing
