// The fused head against its oracle: losses and gradients of every objective.
#include "kernels/torch/head/student_head.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "kernels/torch/gemm/head_gemm_cpu.h"
#include "kernels/torch/head/student_head_cpu.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/head_problem.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

// Products whose terms are added in another order: a few roundings of float32, relative to the
// largest element.
constexpr double kOrderTolerance = 1e-6;

// All objectives, odd sizes, k = 1..V, one row, both temperatures, on- and off-policy.
TEST(StudentHead, MatchesAutogradForEveryObjective) {
  // There are hundreds of tiny operations; ChunkingDoesNotChangeTheResult uses threads.
  const ThreadsRestored one_thread(1);
  struct Shape {
    int64_t num_rows, hidden_size, vocab_size, k;
  };
  const Shape shapes[] = {
      {1, 1, 1, 1}, {1, 5, 7, 1}, {3, 4, 17, 16}, {5, 8, 33, 33}, {7, 16, 1029, 13}};
  for (const ObjectiveInfo& info : kObjectives) {
    uint64_t seed = 0;
    for (Shape shape : shapes) {
      if (info.traits & kNeedsFullVocabulary) shape.k = shape.vocab_size;
      for (double temperature : {1.0, 0.6}) {
        Problem problem =
            MakeProblem(shape.num_rows, shape.hidden_size, shape.vocab_size, shape.k, ++seed);
        HeadOptions options = OptionsFor(std::string(info.name));
        options.temperature = temperature;
        if (temperature != 1.0) {
          problem.targets.behavior_log_probs_N = problem.targets.teacher_sampled_log_probs_N - 0.5;
        }
        ExpectMatchesOracle(problem, options,
                            std::string(info.name) + ", V " + std::to_string(shape.vocab_size) +
                                ", k " + std::to_string(shape.k) + ", temperature " +
                                std::to_string(temperature));
      }
    }
  }
}

TEST(StudentHead, ChunkingDoesNotChangeTheResult) {
  const Problem problem = MakeProblem(11, 8, 20011, 9, 5);
  HeadOptions options = OptionsFor("sc_ta_opd");
  options.top_k_metrics = true;
  const HeadRun whole = RunHead(problem, options);
  for (int64_t workspace_bytes : {int64_t{1}, int64_t{20011 * 4 * 2}, int64_t{20011 * 4 * 5 + 3}}) {
    options.workspace_bytes = workspace_bytes;
    ExpectClose(RunHead(problem, options), whole, problem.targets, kOrderTolerance, kOrderTolerance,
                "chunks");
  }
}

TEST(StudentHead, AccumulatesIntoDLmHeadAndRepeatsBitForBit) {
  const Problem problem = MakeProblem(6, 8, 50, 4, 6);
  HeadOptions options = OptionsFor("ta_opd");
  options.top_k_metrics = true;
  const HeadRun once = RunHead(problem, options);
  ExpectSameBits(RunHead(problem, options), once);
  const at::Tensor added = RunHead(problem, options, 1).d_lm_head;
  ExpectClose(added, once.d_lm_head.to(at::kDouble) + 1, kOrderTolerance, "d lm_head");
}

// Multiplies bfloat16 by `gemm`.
HeadRun RunWithGemm(const Problem& problem, const HeadOptions& options,
                    const cpu::PackedGemm& gemm) {
  HeadRun run;
  run.d_lm_head = at::zeros(problem.lm_head.sizes());
  run.output = StudentHeadCpu(problem.hidden, problem.lm_head, problem.targets, options,
                              run.d_lm_head, gemm);
  return run;
}

// Compared with float64 on the same bfloat16 numbers, the loss is accurate to float32, while
// rounded logits would change its second digit. The products read the logits' gradient in bfloat16.
TEST(StudentHead, Bfloat16InputsHaveFloat32Logits) {
  const Problem problem = WithType(MakeProblem(9, 64, 5003, 16, 7), at::kBFloat16);
  for (const char* name : {"ta_opd", "sc_ta_opd", "forward_kl_tail"}) {
    const HeadOptions options = OptionsFor(name);
    for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
      const HeadRun run = RunWithGemm(problem, options, *gemm);
      EXPECT_EQ(run.output.d_hidden_NH.scalar_type(), at::kBFloat16);
      ExpectMatchesOracle(run, problem, options, kFloatTolerance, kBfloat16OutputTolerance, name);
    }
  }
}

HeadRun RunOnThreads(int num_threads, const Problem& problem, const HeadOptions& options,
                     float start) {
  const ThreadsRestored threads(num_threads);
  return RunHead(problem, options, start);
}

TEST(StudentHead, NumberOfThreadsDoesNotChangeABit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Problem problem = WithType(MakeProblem(19, 24, 30001, 7, 8), dtype);
    HeadOptions options = OptionsFor("sc_ta_opd");
    options.top_k_metrics = true;
    const HeadRun one = RunOnThreads(1, problem, options, 0);
    for (const int num_threads : {2, 3, 4, 16}) {
      ExpectSameBits(RunOnThreads(num_threads, problem, options, 0), one);
    }
  }
}

// With a workspace that is too small for the exponentials of all rows, AMX computes the logits
// twice, with the bits of keeping the exponentials.
TEST(StudentHead, LogitsThatAreComputedTwiceChangeNoBit) {
  const Problem problem = WithType(MakeProblem(50, 24, 9001, 7, 12), at::kBFloat16);
  for (const char* name : {"ta_opd", "sc_ta_opd", "normalized"}) {
    for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
      if (!CpuHeadRecomputes(problem.lm_head, *gemm)) continue;
      HeadOptions options = OptionsFor(name);
      options.top_k_metrics = true;
      const HeadRun kept = RunWithGemm(problem, options, *gemm);
      options.workspace_bytes = 50 * 9001;  // half of the exponentials
      ExpectSameBits(RunWithGemm(problem, options, *gemm), kept);
    }
  }
}

// Threads share the rows of a small head in tiles: in one group of them, and in two.
TEST(StudentHead, TilesOfASmallHeadAreItsRows) {
  for (const auto& [num_rows, dtype] :
       {std::pair(700, at::kFloat), std::pair(9001, at::kFloat), std::pair(700, at::kBFloat16)}) {
    const Problem problem = WithType(MakeProblem(num_rows, 24, 130, 7, 9), dtype);
    HeadOptions options = OptionsFor("sc_ta_opd");
    options.top_k_metrics = true;
    const HeadRun one = RunOnThreads(1, problem, options, 1);
    const HeadRun three = RunOnThreads(3, problem, options, 1);
    options.workspace_bytes = 1 << 20;  // too little for tiles
    const HeadRun chunks = RunOnThreads(3, problem, options, 1);
    ExpectSameBits(one, three);

    EXPECT_TRUE(at::equal(one.output.loss_N, chunks.output.loss_N));
    EXPECT_TRUE(at::equal(one.output.metrics_NM, chunks.output.metrics_NM));
    const double tolerance = dtype == at::kFloat ? kFloatTolerance : kBfloat16OutputTolerance;
    ExpectGradientClose(one.output.d_hidden_NH, chunks.output.d_hidden_NH.to(at::kDouble),
                        tolerance, "d hidden");
    ExpectClose(one.d_lm_head, chunks.d_lm_head.to(at::kDouble), tolerance, "d lm_head");
    if (dtype != at::kFloat) continue;
    const Expected expected = Oracle(problem, options);
    ExpectClose(one.d_lm_head - 1, expected.d_lm_head, kFloatTolerance, "d lm_head of autograd");
  }
}

// a = 0 in every row: there is no matrix product in the backward pass, and the rows of the head
// outside of the support and y are untouched.
TEST(StudentHead, ObjectivesWithoutDensePartTouchFewRowsOfTheHead) {
  Problem problem = MakeProblem(9, 24, 2003, 5, 71);
  problem.targets.sampled_ids_N[0] = problem.targets.support_ids_Nk[0][2];
  for (const char* name : {"normalized", "forward_kl"}) {
    const HeadOptions options = OptionsFor(name);
    ExpectMatchesOracle(problem, options, name);
    const float marker = 3;
    const at::Tensor d_lm_head = RunHead(problem, options, marker).d_lm_head;
    const int64_t touched = d_lm_head.ne(marker).any(1).sum().item<int64_t>();
    EXPECT_GT(touched, 5) << name;
    EXPECT_LE(touched, 9 * 6) << name;
  }
}

// Logits of +-1e4 and a shift of 1000: with a hidden size of 1, the logits are hidden * lm_head.
TEST(StudentHead, ExtremeLogitsStayFinite) {
  for (const ObjectiveInfo& info : kObjectives) {
    for (double factor : {1e4, -1e4}) {
      const int64_t k = info.traits & kNeedsFullVocabulary ? 12 : 3;
      Problem problem = MakeProblem(4, 1, 12, k, 9);
      problem.hidden.fill_(factor);
      problem.lm_head = at::linspace(-1, 1, 12).unsqueeze(1).contiguous();
      HeadOptions options = OptionsFor(std::string(info.name));
      options.top_k_metrics = true;
      const auto& [output, d_lm_head] = RunHead(problem, options);
      for (const at::Tensor& result :
           {output.loss_N, output.metrics_NM, output.d_hidden_NH, d_lm_head}) {
        EXPECT_TRUE(at::isfinite(result).all().item<bool>()) << info.name;
      }
    }
    Problem problem = MakeProblem(4, 8, 20, info.traits & kNeedsFullVocabulary ? 20 : 3, 10);
    problem.hidden = at::cat({problem.hidden, at::ones({4, 1})}, 1);
    problem.lm_head = at::cat({problem.lm_head, at::zeros({20, 1})}, 1);
    const HeadOptions options = OptionsFor(std::string(info.name));
    const HeadOutput plain = RunHead(problem, options).output;
    problem.lm_head.select(1, 8).fill_(1000);
    const HeadOutput shifted = RunHead(problem, options).output;
    // float32 logits near 1000 are rounded to 6e-5.
    ExpectClose(shifted.loss_N, plain.loss_N.to(at::kDouble), 1e-3,
                std::string(info.name) + ": shift");
  }
}

TEST(StudentHead, NanHiddenShowsInThatRowsLossOnly) {
  Problem problem = MakeProblem(3, 4, 20, 3, 11);
  problem.hidden[1][2] = std::nan("");
  const HeadOutput output = RunHead(problem, OptionsFor("ta_opd")).output;
  EXPECT_TRUE(std::isfinite(output.loss_N[0].item<float>()));
  EXPECT_TRUE(std::isnan(output.loss_N[1].item<float>()));
  EXPECT_TRUE(std::isfinite(output.loss_N[2].item<float>()));
}

TEST(StudentHead, CrossEntropyNeedsNoTeacher) {
  const Problem full = MakeProblem(5, 4, 20, 3, 12);
  Problem problem = full;
  problem.targets = {};
  problem.targets.sampled_ids_N = full.targets.sampled_ids_N;
  problem.targets.row_weights_N = full.targets.row_weights_N;
  const HeadOptions options = OptionsFor("cross_entropy");
  const HeadOutput with = StudentHead(full.hidden, full.lm_head, full.targets, options, {});
  const HeadOutput without =
      StudentHead(problem.hidden, problem.lm_head, problem.targets, options, {});
  ExpectClose(without.loss_N, with.loss_N.to(at::kDouble), kOrderTolerance, "loss");
  ExpectGradientClose(without.d_hidden_NH, with.d_hidden_NH.to(at::kDouble), kOrderTolerance,
                      "d hidden");
}

TEST(StudentHead, NoRowsGiveEmptyOutput) {
  const Problem problem = Narrowed(MakeProblem(1, 4, 20, 3, 13), 0, 0);
  const HeadOutput output =
      StudentHead(problem.hidden, problem.lm_head, problem.targets, OptionsFor("ta_opd"), {});
  EXPECT_EQ(output.loss_N.numel(), 0);
  EXPECT_EQ(output.metrics_NM.sizes(), (std::vector<int64_t>{0, kNumHeadMetrics}));
}

// Tied weights: the embedding is the lm_head, so its gradient has two sources.
TEST(StudentHeadLoss, IsAnAutogradNodeWithTiedWeights) {
  const Problem problem = MakeProblem(6, 8, 25, 4, 14);
  const HeadOptions options = OptionsFor("ta_opd");
  const at::Tensor inputs =
      at::randint(0, 25, {6}, Seeded(3), at::TensorOptions().dtype(at::kLong));

  const at::Tensor tied = problem.lm_head.detach().clone().requires_grad_(true);
  HeadOutput output;
  const at::Tensor loss =
      StudentHeadLoss(tied.index_select(0, inputs), tied, problem.targets, options, &output);
  (loss * 2).backward();

  const at::Tensor exact = problem.lm_head.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor log_p = at::log_softmax(at::mm(exact.index_select(0, inputs), exact.t()), 1);
  const at::Tensor expected = (OracleRows("ta_opd", log_p, problem.targets, 0).second *
                               problem.targets.row_weights_N.to(at::kDouble))
                                  .sum();
  (expected * 2).backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(),
              1e-5 * std::abs(expected.item<double>()));
  ExpectGradientClose(tied.grad(), exact.grad(), kFloatTolerance, "tied gradient");
  EXPECT_EQ(output.loss_N.size(0), 6);
}

TEST(StudentHeadLoss, CastsTheHeadsGradientAndSkipsFrozenInputs) {
  const Problem problem = WithType(MakeProblem(6, 8, 25, 4, 15), at::kBFloat16);
  const HeadOptions options = OptionsFor("ta_opd");
  problem.lm_head.requires_grad_(true);
  StudentHeadLoss(problem.hidden, problem.lm_head, problem.targets, options, nullptr).backward();
  EXPECT_EQ(problem.lm_head.grad().scalar_type(), at::kBFloat16);
  const Expected expected = Oracle(problem, options);
  // Rounded once more than d_lm_head, to lm_head's dtype.
  constexpr double kCastTolerance = kBfloat16OutputTolerance + 0x1p-9;
  ExpectHeadGradientClose(problem.lm_head.grad(), expected.d_lm_head, problem.targets,
                          kCastTolerance, "d lm_head");
  EXPECT_FALSE(problem.hidden.grad().defined());

  const at::Tensor frozen = problem.lm_head.detach();
  const at::Tensor hidden = problem.hidden.detach().requires_grad_(true);
  StudentHeadLoss(hidden, frozen, problem.targets, options, nullptr).backward();
  ExpectGradientClose(hidden.grad(), expected.d_hidden, kBfloat16OutputTolerance, "d hidden");
}

// The head's gradient is not computed, is returned to autograd, or is added to a gradient target.
TEST(StudentHeadLoss, BackwardRunsOnce) {
  const Problem problem = MakeProblem(6, 8, 25, 4, 15);
  for (const auto& [is_trained, has_target] :
       {std::pair(false, false), {true, false}, {true, true}}) {
    const at::Tensor hidden = problem.hidden.detach().clone().requires_grad_(true);
    const at::Tensor lm_head = problem.lm_head.detach().clone().requires_grad_(is_trained);
    if (has_target) lm_head.mutable_grad() = at::zeros(lm_head.sizes());
    const auto loss = [&] {
      return StudentHeadLoss(hidden, lm_head, problem.targets, OptionsFor("ta_opd"), nullptr);
    };
    const at::Tensor once = loss();
    once.backward();
    ExpectThrows("backward runs once", [&] { once.backward(); });
    if (has_target) ExpectThrows("must not be scaled", [&] { (loss() * 2).backward(); });
  }
}

void ExpectRefused(const Problem& problem, const HeadOptions& options, const std::string& part,
                   at::Tensor d_lm_head = {}) {
  ExpectThrows(part, [&] {
    StudentHead(problem.hidden, problem.lm_head, problem.targets, options, d_lm_head);
  });
}

// Expects this refusal of a valid problem that `change` has changed.
void ExpectRefused(const std::string& part, const std::function<void(Problem&)>& change,
                   const HeadOptions& options = OptionsFor("sc_ta_opd")) {
  Problem problem = MakeProblem(4, 6, 20, 3, 16);
  change(problem);
  ExpectRefused(problem, options, part);
}

TEST(StudentHead, RefusesWrongInputsByName) {
  ExpectRefused("hidden has H = 6 but lm_head has H = 5", [](Problem& p) {
    p.lm_head = at::zeros({20, 5});
  });
  ExpectRefused("must be float32, bfloat16 or float16",
                [](Problem& p) { p.hidden = p.hidden.to(at::kDouble); });
  ExpectRefused("lm_head is", [](Problem& p) { p.lm_head = p.lm_head.to(at::kBFloat16); });
  ExpectRefused("hidden must be [N, H]", [](Problem& p) { p.hidden = at::zeros({4}); });
  ExpectRefused("hidden has H = 0", [](Problem& p) {
    p.hidden = at::zeros({4, 0});
    p.lm_head = at::zeros({20, 0});
  });
  ExpectRefused("lm_head has V = 0", [](Problem& p) { p.lm_head = at::zeros({0, 6}); });
}

TEST(StudentHead, RefusesWrongTargetsByName) {
  using Targets = HeadTargets;
  const auto refused = [](const std::string& part, void (*change)(Targets&),
                          const char* objective = "sc_ta_opd") {
    ExpectRefused(
        part, [&](Problem& p) { change(p.targets); }, OptionsFor(objective));
  };
  refused("support_ids is", [](Targets& t) { t.support_ids_Nk = t.support_ids_Nk.to(at::kLong); });
  refused("teacher_log_probs has shape",
          [](Targets& t) { t.teacher_log_probs_Nk = t.teacher_log_probs_Nk.narrow(1, 0, 2); });
  refused(
      "teacher_entropy is missing; objective entropy_aware needs it",
      [](Targets& t) { t.teacher_entropy_N.reset(); }, "entropy_aware");
  refused(
      "support_ids has k = 3, must be the vocabulary of 20", [](Targets&) {}, "full");
  refused("teacher_sampled_log_probs is missing",
          [](Targets& t) { t.teacher_sampled_log_probs_N.reset(); });
  refused("row_weights has shape",
          [](Targets& t) { t.row_weights_N = t.row_weights_N.narrow(0, 0, 3); });
  refused("support_ids holds ids in", [](Targets& t) { t.support_ids_Nk[2][1] = -2; });
  refused("support_ids holds ids in", [](Targets& t) { t.support_ids_Nk[2][1] = 20; });
  refused("sampled_ids holds ids in", [](Targets& t) { t.sampled_ids_N[3] = -2; });
  refused("sampled_ids holds ids in", [](Targets& t) { t.sampled_ids_N[3] = 20; });
  refused("k = 0", [](Targets& t) {
    t.support_ids_Nk = at::zeros({4, 0}, at::kInt);
    t.teacher_log_probs_Nk = at::zeros({4, 0});
  });
  refused("support_ids has k = 21, larger than the vocabulary of 20", [](Targets& t) {
    t.support_ids_Nk = at::arange(21, at::kInt).expand({4, 21}).contiguous();
    t.teacher_log_probs_Nk = at::full({4, 21}, -3.0f);
  });
  refused("support_ids holds an id twice",
          [](Targets& t) { t.support_ids_Nk[1][0] = t.support_ids_Nk[1][2]; });
  refused("support_ids holds an id after padding", [](Targets& t) { t.support_ids_Nk[1][1] = -1; });
  refused("support_ids has k = 0 in one row", [](Targets& t) { t.support_ids_Nk[1].fill_(-1); });
}

TEST(StudentHead, RefusesWrongOptionsAndOutputsByName) {
  const Problem good = MakeProblem(4, 6, 20, 3, 16);
  const HeadOptions options = OptionsFor("sc_ta_opd");
  HeadOptions wrong = options;
  wrong.temperature = 0;
  ExpectRefused(good, wrong, "temperature is 0");
  wrong = OptionsFor("jsd");
  wrong.objective.term[0].objective.beta = 1;
  ExpectRefused(good, wrong, "beta is 1");
  wrong = options;
  wrong.objective.num_terms = 5;
  ExpectRefused(good, wrong, "num_terms is 5, must be 1 to 4");
  wrong = options;
  wrong.objective.term[0].weight = 0;
  ExpectRefused(good, wrong, "weight is 0");
  wrong.objective.term[0].weight = 1;
  wrong.objective.term[0].objective.max_rho = -1;
  ExpectRefused(good, wrong, "max_rho is -1");
  ExpectRefused(good, options, "must be contiguous", at::zeros({6, 20}).t());
  ExpectRefused(good, options, "d_lm_head", at::zeros({20, 7}));
  ExpectRefused(good, options, "d_lm_head", at::zeros({20, 6}, at::kDouble));
}

}  // namespace
}  // namespace taopd::testing
