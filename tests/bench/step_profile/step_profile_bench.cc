// Measures where a training step spends its time: forward pass, head, backward pass, gradient sums,
// norm and update of a random model on random sequences.
//
//   step_profile_bench CONFIG.json DTYPE NUM_LAYERS NUM_SEQUENCES LENGTH REPEAT
//
// Prints one JSON object: the milliseconds of CPU time of one step by phase and part, as the median
// of REPEAT steps after a warm-up, and `step_ms` of steps without the measurement. CPU time counts
// all threads; other programs on the machine hardly change it. A part is a user scope of LibTorch's
// record_function ("taopd::norm"). The backward pass of an operation counts toward the scope in
// which its forward pass ran, which its sequence number identifies.
#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/io/file.h"
#include "common/model/weights/model_files.h"
#include "kernels/torch/head/student_head.h"
#include "tests/bench/process.h"
#include "trainer/optim/adamw.h"
#include "trainer/step/loss/head_targets.h"

namespace taopd {
namespace {

constexpr char kScopePrefix[] = "taopd::";
constexpr int32_t kSupport = 16;
constexpr int64_t kResponsesPerPrompt = 4;

double ProcessorMs() { return 1e3 * ProcessorSeconds(); }

// Adds up the time of each part between the changes of the running part.
class Recorder {
 public:
  void SetPhase(const std::string& phase) {
    Count();
    phase_ = phase;
  }
  void Enter(const std::string& part) {
    Count();
    parts_.push_back(part);
    NoteNode();
  }
  void Leave() {
    Count();
    parts_.pop_back();
  }
  // Assigns the next autograd node of this thread to the running part.
  void NoteNode() { part_of_node_[at::sequence_number::peek()] = parts_.back(); }
  std::string PartOfNode(int64_t sequence_number) const {
    const auto found = part_of_node_.find(static_cast<uint64_t>(sequence_number));
    return found == part_of_node_.end() ? "other" : found->second;
  }
  std::map<std::string, double> TakeMs() {
    Count();
    return std::exchange(ms_, {});
  }

 private:
  void Count() {
    const double now = ProcessorMs();
    if (!phase_.empty()) ms_[phase_ + "/" + parts_.back()] += now - last_;
    last_ = now;
  }

  std::string phase_;
  std::vector<std::string> parts_ = {"other"};
  std::map<uint64_t, std::string> part_of_node_;
  std::map<std::string, double> ms_;
  double last_ = ProcessorMs();
};

Recorder* recorder = nullptr;  // global, because callbacks have no state; one thread trains

bool IsPart(const at::RecordFunction& fn) {
  return fn.scope() == at::RecordScope::BACKWARD_FUNCTION ||
         (fn.scope() == at::RecordScope::USER_SCOPE &&
          std::string(fn.name()).rfind(kScopePrefix, 0) == 0);
}

std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& fn) {
  if (!IsPart(fn)) {
    recorder->NoteNode();
  } else if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    recorder->Enter(recorder->PartOfNode(fn.seqNr()));
  } else {
    recorder->Enter(std::string(fn.name()).substr(sizeof(kScopePrefix) - 1));
  }
  return nullptr;
}

void OnEnd(const at::RecordFunction& fn, at::ObserverContext*) {
  if (IsPart(fn)) recorder->Leave();
}

struct Problem {
  std::unique_ptr<Decoder> student;
  StudentInput input;
  HeadTargets targets;
};

// Makes sequences whose first quarter is the prompt, which four successive sequences share. The
// teacher's support is random.
Problem MakeProblem(const std::string& config_path, const std::string& dtype, int64_t num_layers,
                    int64_t num_sequences, int64_t length) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(OrDie(ReadFileToString(config_path)));
  json["num_hidden_layers"] = num_layers;
  const ModelConfig config = OrDie(ParseModelConfig(json.dump()));
  Problem problem;
  problem.student = OrDie(MakeDecoder(config, {dtype, "cpu", true}, RandomStream(1)));
  RandomStream random(2);
  std::vector<ScoredRollout> rollouts(num_sequences);
  std::vector<const ScoredRollout*> sequences;
  for (int64_t i = 0; i < num_sequences; ++i) {
    for (int64_t t = 0; t <= length; ++t) {
      const auto id = static_cast<int32_t>(random.NextBelow(config.vocab_size));
      Rollout& rollout = rollouts[i].rollout;
      (t < length / 4 ? rollout.prompt_ids : rollout.response_ids).push_back(id);
      if (i % kResponsesPerPrompt != 0 && t < length / 4) {
        rollout.prompt_ids.back() = rollouts[i - 1].rollout.prompt_ids[t];
      }
    }
    sequences.push_back(&rollouts[i]);
  }
  problem.input = MakeStudentInput(sequences, at::kCPU, problem.student->SharesPrefixes());
  const int64_t N = problem.input.rows_N.size(0), V = config.vocab_size;
  const int64_t k = std::min<int64_t>(kSupport, V / 2);
  HeadTargets& targets = problem.targets;
  // The ids are distinct: one from each of k ranges of the vocabulary.
  targets.support_ids_Nk =
      (at::randint(V / k, {N, 1}, at::kLong) + at::arange(k) * (V / k)).to(at::kInt);
  targets.teacher_log_probs_Nk = at::log_softmax(at::randn({N, k}), 1) - 0.1;
  targets.teacher_log_tail_N = at::full({N}, std::log(1 - std::exp(-0.1)));
  targets.sampled_ids_N = at::randint(V, {N}, at::kInt);
  targets.teacher_sampled_log_probs_N = at::full({N}, -3.0);
  targets.row_weights_N = at::full({N}, 1.0 / static_cast<double>(N));
  return problem;
}

void Step(const Problem& problem, AdamW* optimizer, Recorder* times) {
  HeadOptions head;
  head.objective = *FindObjective("ta_opd");
  const auto phase = [&](const char* name) {
    if (times != nullptr) times->SetPhase(name);
  };
  phase("forward");
  const at::Tensor hidden_TH = problem.student->Forward(problem.input.batch);
  const at::Tensor hidden_NH = hidden_TH.index_select(0, problem.input.rows_N);
  phase("head");
  HeadOutput output;
  const at::Tensor loss =
      StudentHeadLoss(hidden_NH, problem.student->lm_head(), problem.targets, head, &output);
  phase("backward");
  loss.backward();
  phase("gradient norm");
  const double grad_norm = optimizer->GradientNorm();
  phase("update");
  optimizer->Update(1e-5, grad_norm);
  phase("");
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(const std::vector<std::string>& arguments) {
  const int64_t repeat = std::stoll(arguments[5]);
  at::manual_seed(3);
  const Problem problem = MakeProblem(arguments[0], arguments[1], std::stoll(arguments[2]),
                                      std::stoll(arguments[3]), std::stoll(arguments[4]));
  AdamW optimizer(problem.student->Parameters(), OptimizerConfig());
  Step(problem, &optimizer, nullptr);
  std::vector<double> step_ms;
  for (int64_t i = 0; i < repeat; ++i) {
    const double start = ProcessorMs();
    Step(problem, &optimizer, nullptr);
    step_ms.push_back(ProcessorMs() - start);
  }
  at::addGlobalCallback(at::RecordFunctionCallback(&OnStart, &OnEnd)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE,
                                     at::RecordScope::BACKWARD_FUNCTION}));
  std::map<std::string, std::vector<double>> part_ms;
  for (int64_t i = 0; i < repeat; ++i) {
    Recorder of_step;
    recorder = &of_step;
    Step(problem, &optimizer, &of_step);
    for (const auto& [part, ms] : of_step.TakeMs()) part_ms[part].push_back(ms);
  }
  int64_t num_parameters = 0;
  for (const auto& [name, parameter] : problem.student->Parameters())
    num_parameters += parameter.numel();
  nlohmann::ordered_json result;
  result["threads"] = at::get_num_threads();
  result["tokens"] = problem.input.batch.token_ids_T.size(0);
  result["rows"] = problem.input.rows_N.size(0);
  result["parameters"] = num_parameters;
  result["peak_mib"] = StatusBytes("VmHWM") >> 20;
  result["step_ms"] = Median(step_ms);
  for (const auto& [part, ms] : part_ms) result["parts_ms"][part] = Median(ms);
  std::cout << result.dump() << std::endl;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 6) {
    std::cerr
        << "usage: step_profile_bench CONFIG.json DTYPE NUM_LAYERS NUM_SEQUENCES LENGTH REPEAT\n";
    return 1;
  }
  taopd::Run(arguments);
  return 0;
}
