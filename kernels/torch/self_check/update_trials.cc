#include <algorithm>

#include "kernels/torch/layers/adamw.h"
#include "kernels/torch/sampling/row_sampling.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {
namespace {

// A token is right if its place in the cumulative sum contains the uniform number, within the
// rounding of float32; for temperature 0, if its logit is the largest.
class SamplingTrial final : public Trial {
 public:
  SamplingTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : sampler_({kernels.sample_rows, SampleRowsWorkspaceBytes}) {
    RandomNumbers random(shape.device, seed);
    logits_SV_ = random.Normal({kRows, shape.vocab_size}, at::kFloat, 3);
    const at::Tensor uniforms = random.Uniform({kRows}, at::kDouble).cpu();
    for (int64_t i = 0; i < kRows; ++i) {
      const float temperature = i == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(i % 4);
      rows_.push_back({i, temperature, uniforms.const_data_ptr<double>()[i]});
    }
  }

  void RunCustom() override { custom_ = DrawRows(logits_SV_, rows_, sampler_); }
  void RunComposed() override { DrawRows(logits_SV_, rows_, {.composed = true}); }

  std::vector<OutputError> Errors() const override {
    OutputError places = {"tokens", 0, kPlaceAllowed};
    std::vector<float> log_probs, expected;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const DrawnRow& drawn = custom_[i];
      const bool in_range = drawn.id >= 0 && drawn.id < logits_SV_.size(1);
      const bool is_greedy = rows_[i].temperature == 0;
      const double temperature = is_greedy ? 1 : rows_[i].temperature;
      const at::Tensor z_V = logits_SV_[static_cast<int64_t>(i)].to(at::kDouble);
      const at::Tensor p_V = (z_V / temperature).softmax(0);
      if (!in_range || drawn.invalid) {
        places.error = 1;
        continue;
      }
      const double end = p_V.narrow(0, 0, drawn.id + 1).sum().item<double>();
      const double begin = end - p_V[drawn.id].item<double>(), u = rows_[i].uniform;
      const double missed =
          is_greedy ? (z_V.max() - z_V[drawn.id]).item<double>() : std::max(begin - u, u - end);
      places.error = std::max(places.error, missed);
      log_probs.insert(log_probs.end(), {drawn.log_prob, drawn.raw_log_prob});
      expected.push_back(static_cast<float>(p_V[drawn.id].log().item<double>()));
      expected.push_back(static_cast<float>(z_V.log_softmax(0)[drawn.id].item<double>()));
    }
    return {places, Compare({"log-probs", at::tensor(log_probs), kLogProbAllowed, true},
                            at::tensor(expected))};
  }

 private:
  static constexpr int64_t kRows = 16;
  // Cumulative sums in float32 against float64.
  static constexpr double kPlaceAllowed = 1e-4;

  const RowSampler sampler_;
  at::Tensor logits_SV_;
  std::vector<RowToDraw> rows_;
  std::vector<DrawnRow> custom_;
};

// Two parameters: a bfloat16 one with a float32 master, and one without, whose moments are bfloat16
// too and are rounded by random bits.
class AdamWTrial final : public Trial {
 public:
  AdamWTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : kernels_(kernels) {
    RandomNumbers random(shape.device, seed);
    // More than one block, and not a multiple of anything.
    const int64_t size =
        std::min<int64_t>(shape.hidden_size * shape.hidden_size, kMostElements) + kAdamWBlock + 17;
    for (const bool has_master : {true, false}) {
      AdamWState state;
      const at::ScalarType moments = has_master ? at::kFloat : at::kBFloat16;
      state.gradient = random.Normal({size}, at::kFloat, 0.1);
      state.parameter = random.Normal({size}, at::kBFloat16);
      if (has_master) state.master = state.parameter.to(at::kFloat);
      state.exp_avg = random.Normal({size}, moments, 0.1);
      state.exp_avg_sq = random.Normal({size}, moments, 0.1).square_();
      state.weight_decay = 0.1;
      state.number = has_master ? 0 : 1;
      state.first_element = 100;
      start_.push_back(state);
    }
    settings_.lr = 1e-2;
    settings_.step = 7;
    settings_.gradient_scale = 0.5;
  }

  void RunCustom() override {
    const ScopedDeviceKernels kernels(kernels_);
    custom_ = Copies();
    UpdateAdamW(settings_, custom_);
    custom_sum_ = SumOfSquares(Gradients());
  }

  void RunComposed() override {
    composed_ = Copies();
    for (const AdamWState& state : composed_) UpdateAdamWComposed(settings_, state);
    composed_sum_ = SumOfSquaresComposed(Gradients());
  }

  std::vector<OutputError> Errors() const override {
    return Compare(Named(custom_, custom_sum_), Named(composed_, composed_sum_));
  }

 private:
  static constexpr int64_t kMostElements = 1 << 20;

  std::vector<AdamWState> Copies() const {
    std::vector<AdamWState> copies = start_;
    for (AdamWState& state : copies) {
      for (at::Tensor* tensor :
           {&state.master, &state.exp_avg, &state.exp_avg_sq, &state.parameter}) {
        if (tensor->defined()) *tensor = tensor->clone();
      }
    }
    return copies;
  }

  std::vector<at::Tensor> Gradients() const { return {start_[0].gradient, start_[1].gradient}; }

  // A last bit of float32 may round a bfloat16 number the other way.
  static std::vector<NamedTensor> Named(const std::vector<AdamWState>& states, double sum) {
    return {{"master", states[0].master, kFloatAllowed},
            {"first moment", states[0].exp_avg, kFloatAllowed},
            {"second moment", states[0].exp_avg_sq, kFloatAllowed},
            {"bfloat16 parameter", states[0].parameter, kBfloat16Allowed},
            {"parameter without master", states[1].parameter, kBfloat16Allowed},
            {"bfloat16 first moment", states[1].exp_avg, kBfloat16Allowed},
            {"bfloat16 second moment", states[1].exp_avg_sq, kBfloat16Allowed},
            {"sum of squares", at::scalar_tensor(sum, at::kDouble), kFloatAllowed}};
  }

  const DeviceKernels& kernels_;
  AdamWSettings settings_;
  std::vector<AdamWState> start_, custom_, composed_;
  double custom_sum_ = 0, composed_sum_ = 0;
};

}  // namespace

std::vector<TrialKind> UpdateTrials() {
  return {{KernelKind::kSampling, NewTrial<SamplingTrial>, /*only_training=*/false},
          {KernelKind::kAdamW, NewTrial<AdamWTrial>, /*only_training=*/true}};
}

}  // namespace taopd
