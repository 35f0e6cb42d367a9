#include "trainer/optim/adamw.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/io/safetensors/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

OptimizerConfig Config() { return {.betas = {0.9, 0.95}, .weight_decay = 0.1, .max_grad_norm = 0}; }

at::Tensor Leaf(at::Tensor values) { return values.clone().set_requires_grad(true); }

// Adds to the gradient as a backward pass does.
void AddGrad(at::Tensor& parameter, const at::Tensor& grad) {
  parameter.mutable_grad().add_(grad.to(parameter.scalar_type()));
}

absl::Status Save(const AdamW& optimizer, const std::string& path) {
  return optimizer.StateToSave(/*copies=*/false).Write(path);
}

TEST(AdamW, GradientsAreSummedUntilTheUpdateOrTheirClearing) {
  at::Tensor a = Leaf(at::zeros({4}));
  AdamW optimizer({{"a", a}}, Config());
  AddGrad(a, at::full({4}, 1.0));
  AddGrad(a, at::full({4}, 2.0));
  EXPECT_NEAR(optimizer.GradientNorm(), 6.0, 1e-6);  // |(3,3,3,3)|
  optimizer.ClearGradients();
  EXPECT_EQ(optimizer.GradientNorm(), 0.0);
  AddGrad(a, at::full({4}, 5.0));
  optimizer.Update(0.1, optimizer.GradientNorm());
  EXPECT_EQ(optimizer.GradientNorm(), 0.0);
}

// The golden values are torch's clip_grad_norm_ and AdamW in float64
// (golden/make_clipped_adamw.py).
TEST(AdamW, ClipsAndUpdatesAsTorchDoes) {
  // There are six float32 updates of numbers up to 1, and torch divides by the norm + 1e-6.
  constexpr double kTolerance = 5e-6;
  const auto golden =
      nlohmann::json::parse(ReadFile(SourcePath("tests/trainer/optim/golden/clipped_adamw.json")));
  const OptimizerConfig config = {.betas = golden.at("betas").get<std::vector<double>>(),
                                  .eps = golden.at("eps"),
                                  .weight_decay = golden.at("weight_decay"),
                                  .max_grad_norm = golden.at("max_grad_norm")};
  const auto tensor_of = [&](const nlohmann::json& by_name, const std::string& name) {
    return at::tensor(by_name.at(name).get<std::vector<double>>())
        .reshape(golden.at("shapes").at(name).get<std::vector<int64_t>>());
  };
  std::map<std::string, at::Tensor> parameters;
  std::vector<NamedParameter> named;
  for (const auto& [name, shape] : golden.at("shapes").items()) {
    parameters[name] = Leaf(tensor_of(golden.at("initial"), name).to(at::kFloat));
    named.push_back({name, parameters[name]});
  }
  AdamW optimizer(named, config);
  TempDir dir;
  for (const auto& step : golden.at("steps")) {
    for (auto& [name, parameter] : parameters)
      AddGrad(parameter, tensor_of(step.at("gradients"), name));
    const double norm = optimizer.GradientNorm();
    EXPECT_NEAR(norm, step.at("norm").get<double>(), kTolerance * norm);
    optimizer.Update(golden.at("lr"), norm);
    ASSERT_OK(Save(optimizer, dir.File("o.safetensors")));
    ASSERT_OK_AND_ASSIGN(const auto saved, SafetensorsFile::Open(dir.File("o.safetensors")));
    for (const auto& [name, parameter] : parameters) {
      const auto near = [&](const at::Tensor& actual, const char* what) {
        EXPECT_TRUE(at::allclose(actual.to(at::kDouble), tensor_of(step.at(what), name), kTolerance,
                                 kTolerance))
            << what << " of " << name << ", norm " << norm;
      };
      near(parameter.detach(), "parameters");
      const TensorView& bytes = saved->tensors().at("exp_avg." + name);
      at::Tensor exp_avg = at::empty(parameter.sizes(), at::kFloat);
      ASSERT_EQ(bytes.bytes.size(), exp_avg.nbytes());
      std::memcpy(exp_avg.mutable_data_ptr(), bytes.bytes.data(), exp_avg.nbytes());
      near(exp_avg, "exp_avg");
    }
  }
}

TEST(AdamW, Bfloat16ParametersHaveAFloat32Master) {
  at::Tensor parameter = Leaf(at::full({2, 2}, 1.0f).to(at::kBFloat16));
  AdamW optimizer({{"p", parameter}}, Config());
  // Updates of 1e-4 are below half a bfloat16 step at 1 (2^-9): without a master copy nothing would
  // change.
  for (int step = 0; step < 100; ++step) {
    AddGrad(parameter, at::ones({2, 2}));
    optimizer.Update(1e-4, optimizer.GradientNorm());
  }
  EXPECT_NEAR(parameter[0][0].item<float>(), 1.0 - 100 * 1e-4, 0.004);
}

// A model's type and the types of its optimizer's state.
struct Storage {
  at::ScalarType dtype;
  MomentsDtype moments;
  MasterWeights master;
  OptimizerConfig Config() const {
    OptimizerConfig config = testing::Config();
    config.moments = moments;
    config.master = master;
    return config;
  }
};
constexpr Storage kStorages[] = {{at::kFloat, MomentsDtype::kFloat32, MasterWeights::kFloat32},
                                 {at::kFloat, MomentsDtype::kBfloat16, MasterWeights::kNone},
                                 {at::kBFloat16, MomentsDtype::kFloat32, MasterWeights::kFloat32},
                                 {at::kBFloat16, MomentsDtype::kBfloat16, MasterWeights::kFloat32},
                                 {at::kBFloat16, MomentsDtype::kBfloat16, MasterWeights::kNone}};

// The updates of the test above are a fortieth of a bfloat16 step. They change some weights, and
// the mean moves as far as with a master copy.
TEST(AdamW, WithoutAMasterSmallUpdatesAddUp) {
  OptimizerConfig config = Config();
  config.master = MasterWeights::kNone;
  constexpr int64_t kSize = 20'000;
  at::Tensor parameter = Leaf(at::full({kSize}, 1.0f).to(at::kBFloat16));
  AdamW optimizer({{"p", parameter}}, config);
  EXPECT_EQ(optimizer.State().size(), 2u);
  for (int step = 0; step < 100; ++step) {
    AddGrad(parameter, at::ones({kSize}));
    optimizer.Update(1e-4, optimizer.GradientNorm());
  }
  // The standard deviation of a weight is about 0.006, that of the mean 4e-5.
  EXPECT_NEAR(parameter.detach().to(at::kDouble).mean().item<double>(), 1.0 - 100 * 1e-4, 2e-4);
}

TEST(AdamW, SaveAndLoadContinueBitForBit) {
  TempDir dir;
  for (const Storage& storage : kStorages) {
    const OptimizerConfig config = storage.Config();
    const at::ScalarType dtype = storage.dtype;
    at::Tensor straight = Leaf(at::full({3, 2}, 0.5f).to(dtype));
    AdamW optimizer({{"p", straight}}, config);
    auto train = [](AdamW& opt, at::Tensor& p, int from, int to) {
      for (int step = from; step < to; ++step) {
        AddGrad(p, at::full({3, 2}, std::cos(step)));
        opt.Update(0.01, opt.GradientNorm());
      }
    };
    train(optimizer, straight, 0, 5);
    ASSERT_OK(Save(optimizer, dir.File("o.safetensors")));
    at::Tensor resumed = Leaf(straight.detach());
    AdamW other({{"p", resumed}}, config);
    ASSERT_OK(other.Load(dir.File("o.safetensors")));
    EXPECT_EQ(other.num_updates(), 5);
    train(optimizer, straight, 5, 9);
    train(other, resumed, 5, 9);
    EXPECT_TRUE(at::equal(straight, resumed));
  }
}

// With --allow-change optimizer.master a run may continue without its master copies, or with new
// ones.
TEST(AdamW, MastersAreDroppedAndMade) {
  TempDir dir;
  OptimizerConfig without = Config();
  without.master = MasterWeights::kNone;
  at::manual_seed(5);
  at::Tensor p = Leaf(at::randn({20, 50}).to(at::kBFloat16));
  AdamW with_master({{"p", p}}, Config());
  for (int step = 0; step < 3; ++step) {
    AddGrad(p, at::randn({20, 50}));
    with_master.Update(1e-4, 1.0);
  }
  ASSERT_OK(Save(with_master, dir.File("with.safetensors")));
  at::Tensor q = Leaf(p.detach());
  AdamW alone({{"p", q}}, without);
  ASSERT_OK(alone.Load(dir.File("with.safetensors")));
  EXPECT_EQ(alone.num_updates(), 3);
  EXPECT_TRUE(at::equal(alone.State()[1].values, with_master.State()[1].values));
  AddGrad(q, at::randn({20, 50}));
  alone.Update(1e-2, 1.0);
  ASSERT_OK(Save(alone, dir.File("without.safetensors")));
  // The weights are restored before the state is loaded, as in a roll-back.
  {
    const at::NoGradGuard no_grad;
    p.copy_(q);
  }
  EXPECT_FALSE(at::equal(with_master.State()[2].values, q.view({-1}).to(at::kFloat)));
  ASSERT_OK(with_master.Load(dir.File("without.safetensors")));
  EXPECT_TRUE(at::equal(with_master.State()[2].values, q.view({-1}).to(at::kFloat)));
  EXPECT_TRUE(at::equal(with_master.State()[0].values, alone.State()[0].values));
  // A state with some of the master copies does not belong to this model.
  at::Tensor r = Leaf(p.detach());
  AdamW other({{"r", r}}, Config());
  EXPECT_ERROR(other.Load(dir.File("with.safetensors")), kDataLoss, "missing");
}

TEST(AdamW, MomentsOfTheOtherTypeAreConverted) {
  TempDir dir;
  at::Tensor p = Leaf(at::zeros({1000}));
  OptimizerConfig narrow = Config();
  narrow.moments = MomentsDtype::kBfloat16;
  AdamW of_float({{"p", p}}, Config());
  at::manual_seed(5);
  AddGrad(p, at::randn({1000}));
  of_float.Update(0.01, 1.0);
  ASSERT_OK(Save(of_float, dir.File("f.safetensors")));
  const at::Tensor exp_avg = of_float.State()[0].values;
  at::Tensor q = Leaf(p.detach());
  AdamW of_bfloat16({{"p", q}}, narrow);
  ASSERT_OK(of_bfloat16.Load(dir.File("f.safetensors")));
  EXPECT_TRUE(at::equal(of_bfloat16.State()[0].values, exp_avg.to(at::kBFloat16)));
  ASSERT_OK(Save(of_bfloat16, dir.File("b.safetensors")));
  ASSERT_OK(of_float.Load(dir.File("b.safetensors")));
  EXPECT_TRUE(at::equal(exp_avg, of_bfloat16.State()[0].values.to(at::kFloat)));
}

std::vector<NamedParameter> SmallModel(at::ScalarType dtype) {
  at::manual_seed(4);
  std::vector<NamedParameter> parameters;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"model.embed_tokens.weight", {50, 60}},
           {"model.layers.0.norm.weight", {60}},
           {"model.layers.0.mlp.weight", {70, 60}},
           {"model.layers.1.norm.weight", {60}},
           {"model.layers.1.mlp.weight", {70, 60}},
           {"model.norm.weight", {60}}}) {
    parameters.emplace_back(name, Leaf(at::randn(shape).to(dtype)));
  }
  return parameters;
}

void AddGradsOfStep(std::vector<NamedParameter>* parameters, int step) {
  at::manual_seed(100 + step);
  for (auto& [name, parameter] : *parameters) AddGrad(parameter, at::randn(parameter.sizes()));
}

// Three optimizers with a shard each compute together what one optimizer computes.
TEST(AdamW, ShardsTogetherUpdateAsOneDoes) {
  constexpr int kShards = 3;
  TempDir dir;
  for (const Storage& storage : kStorages) {
    const OptimizerConfig config = storage.Config();
    const at::ScalarType dtype = storage.dtype;
    std::vector<NamedParameter> whole = SmallModel(dtype);
    AdamW one(whole, config);
    std::vector<std::vector<NamedParameter>> models;
    std::vector<std::unique_ptr<AdamW>> shards;
    for (int shard = 0; shard < kShards; ++shard) {
      models.push_back(SmallModel(dtype));
      AdamWOptions options;
      options.layout.num_shards = kShards;
      options.layout.max_bucket_elements = 2 * kShards * kFlatAlignment;  // cuts parameters
      options.shard = shard;
      shards.push_back(std::make_unique<AdamW>(models[shard], config, options));
      ASSERT_GT(shards[shard]->layout().buckets().size(), 1u);
    }
    const auto step = [&](int number) {
      AddGradsOfStep(&whole, number);
      const double norm = one.GradientNorm();
      one.Update(0.01, norm);
      double squares = 0;
      for (int shard = 0; shard < kShards; ++shard) {
        AddGradsOfStep(&models[shard], number);
        squares += std::pow(shards[shard]->GradientNorm(), 2);
      }
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-12 * norm);  // float64 sums in another order
      for (int shard = 0; shard < kShards; ++shard) shards[shard]->Update(0.01, norm);
    };
    const auto expect_equal = [&] {
      std::vector<int64_t> num_updated(whole.size());
      for (int shard = 0; shard < kShards; ++shard) {
        const ParameterLayout& layout = shards[shard]->layout();
        for (const ParameterPiece& piece : layout.Pieces(layout.Shard(shard))) {
          const auto elements = [&](const std::vector<NamedParameter>& model) {
            return model[piece.position].second.view({-1}).narrow(0, piece.offset, piece.size);
          };
          EXPECT_TRUE(at::equal(elements(models[shard]), elements(whole)));
          num_updated[piece.position] += piece.size;
        }
      }
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(num_updated[i], whole[i].second.numel());
    };
    for (int number = 0; number < 3; ++number) step(number);
    expect_equal();

    // Each shard reads its part of a whole state.
    ASSERT_OK(Save(one, dir.File("o.safetensors")));
    for (auto& shard : shards) {
      std::vector<AdamW::StateSlice> state = shard->State();
      std::vector<at::Tensor> before;
      for (AdamW::StateSlice& slice : state) {
        before.push_back(slice.values.clone());
        slice.values.zero_();
      }
      ASSERT_OK(shard->Load(dir.File("o.safetensors")));
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_TRUE(at::equal(state[i].values, before[i])) << state[i].name;
      }
    }
    step(3);
    expect_equal();
  }
}

// The CPU stands in for the device. Clipping is the same as well.
TEST(AdamW, OffloadedItHasTheSameBits) {
  TempDir dir;
  for (const Storage& storage : kStorages) {
    OptimizerConfig config = storage.Config();
    config.max_grad_norm = 3;
    std::vector<NamedParameter> kept = SmallModel(storage.dtype), moved = SmallModel(storage.dtype);
    AdamW resident(kept, config);
    config.offload = true;
    AdamW offloaded(moved, config);
    const auto expect_equal = [&] {
      for (size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(at::equal(kept[i].second, moved[i].second)) << kept[i].first;
      }
      const auto a = resident.State(), b = offloaded.State();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].values, b[i].values));
    };
    const auto step = [&](int number) {
      AddGradsOfStep(&kept, number);
      AddGradsOfStep(&moved, number);
      const auto version = moved[0].second._version();
      EXPECT_EQ(resident.GradientNorm(), offloaded.GradientNorm());
      resident.Update(0.01, resident.GradientNorm());
      offloaded.Update(0.01, offloaded.GradientNorm());
      EXPECT_GT(moved[0].second._version(), version);
      EXPECT_EQ(offloaded.GradientNorm(), 0);
    };
    for (int number = 0; number < 3; ++number) step(number);
    expect_equal();
    // Each loads the state of the other.
    ASSERT_OK(Save(resident, dir.File("r.safetensors")));
    ASSERT_OK(Save(offloaded, dir.File("o.safetensors")));
    EXPECT_EQ(ReadFile(dir.File("r.safetensors")), ReadFile(dir.File("o.safetensors")));
    ASSERT_OK(offloaded.Load(dir.File("r.safetensors")));
    step(3);
    expect_equal();
  }
}

TEST(AdamW, StateOfAnotherModelIsRefused) {
  TempDir dir;
  at::Tensor p = Leaf(at::zeros({2})), q = Leaf(at::zeros({3}));
  AdamW optimizer({{"p", p}}, Config());
  ASSERT_OK(Save(optimizer, dir.File("o.safetensors")));
  EXPECT_ERROR(AdamW({{"q", p}}, Config()).Load(dir.File("o.safetensors")), kDataLoss,
               "exp_avg.q is missing");
  EXPECT_ERROR(AdamW({{"p", q}}, Config()).Load(dir.File("o.safetensors")), kDataLoss, "shape");
  EXPECT_ERROR(AdamW({{"p", p}, {"q", q}}, Config()).Load(dir.File("o.safetensors")), kDataLoss,
               "holds 2 tensors");
}

}  // namespace
}  // namespace taopd::testing
