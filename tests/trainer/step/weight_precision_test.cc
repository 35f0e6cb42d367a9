// Tests of learning with bfloat16 weights: with a float32 master copy, without one, and rounded to
// nearest.
#include "tests/trainer/step/tiny_training.h"

namespace taopd::testing {
namespace {

constexpr int64_t kSteps = 80;

// The mean loss of the first and of the last ten steps.
struct Losses {
  double first = 0;
  double last = 0;
};

enum class Rounding { kMaster, kStochastic, kNearest };

Losses Train(Rounding rounding) {
  TinySetting setting = {.dtype = "bfloat16", .num_threads = 1};
  // An update is a fifth of half a last place of a weight of 0.25.
  setting.config.optimizer.lr = 1e-4;
  setting.config.optimizer.weight_decay = 0;
  if (rounding == Rounding::kStochastic) {
    setting.config.optimizer.moments = MomentsDtype::kBfloat16;
    setting.config.optimizer.master = MasterWeights::kNone;
  }
  TinyTraining training(setting);
  Losses losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    const double loss = ByName(training.Step(step, kSteps)).at("loss/mean");
    if (step < 10) losses.first += loss / 10;
    if (step >= kSteps - 10) losses.last += loss / 10;
    // Changes of less than half a last place are lost.
    if (rounding == Rounding::kNearest) training.context.optimizer->CopyParametersToMasters();
  }
  return losses;
}

// With rounding to nearest, updates of a fraction of a last place are lost, and little is learned.
// Stochastic rounding keeps them on average, so the loss falls as with a master copy.
TEST(WeightPrecisionTest, WithoutAMasterTheLossFallsAsWithOne) {
  const Losses master = Train(Rounding::kMaster), stochastic = Train(Rounding::kStochastic),
               nearest = Train(Rounding::kNearest);
  const auto fall = [](const Losses& losses) { return losses.first - losses.last; };
  EXPECT_GT(fall(master), 0.02);
  // Rollouts diverge as soon as weights do. With three seeds, the last losses of the first two
  // differed by at most 0.07 of the fall, and the third was more than 0.75 of it above.
  EXPECT_NEAR(stochastic.last, master.last, 0.25 * fall(master));
  EXPECT_GT(nearest.last, master.last + 0.6 * fall(master));
}

}  // namespace
}  // namespace taopd::testing
