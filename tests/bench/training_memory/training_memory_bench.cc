// Measures the peak memory of one training step of a random model and prints it with the memory
// plan of the same configuration.
//
//   training_memory_bench MODEL_DIR ROLLOUTS LIMIT_GIB SETTING=VALUE...
//
// MODEL_DIR has a config.json; no weights are read. The settings are those of `taopd-trainer
// train`. ROLLOUTS is "generated" (by the engine, to the full max_response_length) or "given"
// (random tokens, as if they had been generated elsewhere). The teacher's answers are random.
//
// With LIMIT_GIB > 0 the private writable memory of the process, touched or not, is limited to that
// (RLIMIT_DATA), and the plan is made for the limit. Prints one JSON object.
#include <sys/resource.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/memory.h"
#include "common/base/random.h"
#include "common/config/yaml.h"
#include "common/engine/torch_engine.h"
#include "common/io/sha256.h"
#include "tests/bench/process.h"
#include "tests/trainer/teacher/scripted_teacher.h"
#include "trainer/setup/engine_options.h"
#include "trainer/setup/plan/memory_plan.h"
#include "trainer/setup/process.h"
#include "trainer/step/train_step.h"

namespace taopd {
namespace {

// Returns scores whose support is random, equally probable tokens.
TeacherScores RandomScores(const TeacherRequest& request, int64_t vocab_size) {
  const auto num_rows = request.token_ids.size() - static_cast<size_t>(request.score_start);
  TeacherScores scores;
  scores.top_k = request.top_k;
  for (size_t row = 0; row < num_rows; ++row) {
    for (int32_t j = 0; j < request.top_k; ++j) {
      scores.ids.push_back(static_cast<int32_t>((7 * row + 13 * j) % vocab_size));
      scores.log_probs.push_back(static_cast<float>(-std::log(2.0 * request.top_k)));
    }
    scores.log_tail.push_back(static_cast<float>(-std::log(2.0)));
    scores.sampled_log_probs.push_back(-5.0f);
    if (request.entropy) scores.entropy.push_back(1.0f);
  }
  return scores;
}

class GivenRollouts final : public RolloutEngine {
 public:
  explicit GivenRollouts(int64_t vocab_size) : vocab_size_(vocab_size) {}
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override {
    RandomStream random(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      Rollout rollout;
      rollout.prompt_ids = requests[i].prompt_ids;
      rollout.response_ids.resize(requests[i].sampling.max_new_tokens);
      for (int32_t& id : rollout.response_ids) {
        id = static_cast<int32_t>(random.NextBelow(vocab_size_));
      }
      rollout.behavior_log_probs.assign(rollout.response_ids.size(), -5.0f);
      done(static_cast<int64_t>(i), std::move(rollout));
    }
  }

 private:
  const int64_t vocab_size_;
};

// Returns a hash of the first moments, which after the first update are the clipped gradients times
// a constant.
std::string HashOfMoments(const AdamW& optimizer) {
  Sha256 hash;
  for (const AdamW::StateSlice& slice : optimizer.State()) {
    if (!slice.name.starts_with(kExpAvgPrefix)) continue;
    const at::Tensor values = slice.values.contiguous();
    hash.Update(std::as_bytes(std::span(values.const_data_ptr<float>(), values.numel())));
  }
  return hash.HexDigest();
}

TrainConfig MakeConfig(int argc, char** argv) {
  TrainConfig config;
  config.student.model = argv[1];
  config.run.name = "memory";
  config.teacher.endpoints = {"grpc://127.0.0.1:1"};
  config.data.train = {"none"};
  config.trainer.device = "cpu";
  config.trainer.num_threads = 2;
  config.eval.measure = EvalMeasure::kNone;
  for (int i = 4; i < argc; ++i) OrDie(ApplyOverride(argv[i], DescribeSettings(config)));
  OrDie(CheckTrainConfig(config));
  return config;
}

std::vector<PromptRecord> RandomPrompts(const TrainConfig& config, int64_t vocab_size) {
  RandomStream random(5);
  std::vector<PromptRecord> prompts(config.data.train_batch_size);
  for (PromptRecord& prompt : prompts) {
    prompt.prompt_ids.resize(config.data.max_prompt_length);
    for (int32_t& id : prompt.prompt_ids) id = static_cast<int32_t>(random.NextBelow(vocab_size));
  }
  return prompts;
}

void Run(int argc, char** argv) {
  TrainConfig config = MakeConfig(argc, argv);
  const bool generated = std::string(argv[2]) == "generated";
  const int64_t limit_bytes = BytesOfGib(std::stod(argv[3]));
  MemoryBudget budget;
  budget.limit_bytes = limit_bytes > 0 ? limit_bytes : std::numeric_limits<int64_t>::max() / 4;
  budget.source = "the bench";
  if (limit_bytes > 0) {
    const rlimit limit = {static_cast<rlim_t>(limit_bytes), static_cast<rlim_t>(limit_bytes)};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) std::exit(1);
  }
  const EnginePlan plan = OrDie(ResolveAuto(&config, config.student.model, budget));
  if (RecomputeOf(config.trainer) != Recompute::kNone) ReturnFreedMemory();  // as in the trainer
  SetNumThreads(config.trainer.num_threads);

  ModelConfig model = OrDie(LoadModelConfig(config.student.model));
  model.eos_token_ids.clear();  // so that responses have the maximum length
  DecoderOptions options;
  options.dtype = config.student.dtype;
  options.device = "cpu";
  options.requires_grad = true;
  options.lora = config.student.lora.Options(config.run.seed);
  const std::shared_ptr<Decoder> student = OrDie(MakeDecoder(model, options, RandomStream(1)));
  AdamW optimizer(student->TrainedParameters(), config.optimizer);
  std::unique_ptr<InferenceEngine> engine;
  std::unique_ptr<RolloutEngine> rollouts;
  if (generated) {
    engine = OrDie(MakeRolloutEngine(config, student));
    rollouts = std::make_unique<LocalRolloutEngine>(engine.get());
  } else {
    rollouts = std::make_unique<GivenRollouts>(model.vocab_size);
  }
  testing::ScriptedTeacher teacher([&](const TeacherRequest& request, const auto& done) {
    done(RandomScores(request, model.vocab_size));
  });
  const std::unique_ptr<ProcessGroup> group = ProcessGroup::Alone();
  StepContext context;
  context.config = &config;
  context.student = student.get();
  context.group = group.get();
  context.optimizer = &optimizer;
  context.rollout_engine = rollouts.get();
  context.teacher = &teacher;
  context.head = MakeHeadOptions(config);
  context.aggregation = config.objective.aggregation;
  const std::vector<PromptRecord> prompts = RandomPrompts(config, model.vocab_size);
  std::vector<const PromptRecord*> batch;
  for (const PromptRecord& prompt : prompts) batch.push_back(&prompt);
  const StepResult result = OrDie(TrainOneStep(context, 0, 1e-6, batch));

  nlohmann::ordered_json json;
  json["parameters"] = model.NumParameters();
  json["updates"] = optimizer.num_updates();
  json["recompute"] = NameOf(config.trainer.recompute);
  json["micro_batch_tokens"] = config.trainer.MicroBatchTokens();
  json["planned_bytes"] = plan.total_bytes;
  json["peak_bytes"] = StatusBytes("VmHWM");
  json["anonymous_bytes"] = StatusBytes("RssAnon");
  json["moments_sha256"] = HashOfMoments(optimizer);
  for (const MemoryLine& line : plan.lines) json["lines"][NameOf(line.item)] = line.bytes;
  for (const auto& [name, value] : result.metrics) {
    if (name == "loss/mean" || name == "loss/grad_norm" || name.starts_with("time/"))
      json[name] = value;
  }
  std::cout << json.dump() << std::endl;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr
        << "usage: training_memory_bench MODEL_DIR generated|given LIMIT_GIB SETTING=VALUE...\n";
    return 64;
  }
  taopd::KeepFreedMemory();
  taopd::Run(argc, argv);
  return 0;
}
