#include "common/engine/runner/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/random.h"

namespace taopd {
namespace {

// A uniform takes two 32-bit words of the stream (RandomStream::NextUniform).
double UniformOfStep(uint64_t seed, int64_t step) {
  return RandomStream(seed, 2 * static_cast<uint64_t>(step)).NextUniform();
}

}  // namespace

absl::StatusOr<SampledToken> Sampler::Sample(std::span<const float> logits_V,
                                             const SamplingParams& params, int64_t step) {
  const int64_t vocab_size = static_cast<int64_t>(logits_V.size());
  logits_V_ = logits_V;
  int32_t argmax = 0;  // the lowest id among equals
  for (int64_t v = 1; v < vocab_size; ++v) {
    if (logits_V[v] > logits_V[argmax]) argmax = static_cast<int32_t>(v);
  }
  const bool greedy = params.temperature == 0.0f;
  max_logit_ = logits_V[argmax];
  temperature_ = greedy ? 1.0 : static_cast<double>(params.temperature);

  weights_V_.resize(vocab_size);
  sum_ = 0.0;
  const float max_logit = logits_V[argmax];
  const float temperature = static_cast<float>(temperature_);
  for (int64_t v = 0; v < vocab_size; ++v) {
    weights_V_[v] = std::exp((logits_V[v] - max_logit) / temperature);
    sum_ += weights_V_[v];
  }
  // A NaN or +inf anywhere makes the sum NaN; so does a row of nothing but -inf.
  if (!std::isfinite(sum_))
    return Internal("the model's logits are not finite (largest: ", max_logit, ")");
  log_sum_ = std::log(sum_);

  SampledToken token;
  if (greedy) {
    token.id = argmax;
  } else {
    const double uniform = UniformOfStep(params.seed, step);
    const bool truncated = params.top_p < 1.0f || (params.top_k > 0 && params.top_k < vocab_size);
    token.id = truncated ? DrawFromTruncated(params, uniform) : DrawFromAll(uniform);
  }
  token.log_prob = LogProb(token.id);
  return token;
}

int32_t Sampler::DrawFromAll(double uniform) const {
  const double target = uniform * sum_;
  double cumulative = 0.0;
  int32_t last_possible = 0;
  for (size_t v = 0; v < weights_V_.size(); ++v) {
    if (weights_V_[v] == 0.0f) continue;
    cumulative += weights_V_[v];
    last_possible = static_cast<int32_t>(v);
    if (cumulative > target) break;
  }
  return last_possible;  // the last one also when rounding lifted the target to the sum
}

int32_t Sampler::DrawFromTruncated(const SamplingParams& params, double uniform) {
  const int64_t vocab_size = static_cast<int64_t>(logits_V_.size());
  const int64_t max_kept =
      params.top_k > 0 ? std::min<int64_t>(params.top_k, vocab_size) : vocab_size;
  order_V_.resize(vocab_size);
  std::iota(order_V_.begin(), order_V_.end(), 0);

  // top-k first; top-p then counts in the distribution renormalised over the k (as vLLM does).
  // Without top-k, the sorted part grows until it holds the mass: sorting the whole vocabulary for
  // a nucleus of a few ids would be most of the time.
  int64_t num_sorted = params.top_k > 0 ? max_kept : std::min<int64_t>(64, vocab_size);
  SortTop(num_sorted);
  double mass = sum_;
  if (params.top_k > 0) {
    mass = 0.0;
    for (int64_t j = 0; j < max_kept; ++j) mass += weights_V_[order_V_[j]];
  }
  const double wanted = static_cast<double>(params.top_p) * mass;
  int64_t num_kept = max_kept;
  double kept_mass = 0.0;
  for (int64_t j = 0; j < max_kept; ++j) {
    if (j == num_sorted) {
      num_sorted = std::min(vocab_size, 8 * num_sorted);
      SortTop(num_sorted);
    }
    kept_mass += weights_V_[order_V_[j]];
    if (params.top_p < 1.0f && kept_mass >= wanted) {
      num_kept = j + 1;
      break;
    }
  }

  const double target = uniform * kept_mass;
  double cumulative = 0.0;
  int32_t chosen = order_V_[0];
  for (int64_t j = 0; j < num_kept && weights_V_[order_V_[j]] > 0.0f; ++j) {
    cumulative += weights_V_[order_V_[j]];
    chosen = order_V_[j];
    if (cumulative > target) break;
  }
  return chosen;
}

void Sampler::SortTop(int64_t num) {
  const auto before = [this](int32_t a, int32_t b) {
    return logits_V_[a] != logits_V_[b] ? logits_V_[a] > logits_V_[b] : a < b;
  };
  std::nth_element(order_V_.begin(), order_V_.begin() + num, order_V_.end(), before);
  std::sort(order_V_.begin(), order_V_.begin() + num, before);
}

void Sampler::AppendTop(int32_t num, std::vector<int32_t>* ids, std::vector<float>* log_probs) {
  order_V_.resize(logits_V_.size());
  std::iota(order_V_.begin(), order_V_.end(), 0);
  SortTop(num);
  for (int32_t j = 0; j < num; ++j) {
    ids->push_back(order_V_[j]);
    log_probs->push_back(LogProb(order_V_[j]));
  }
}

float Sampler::LogProb(int32_t id) const {
  return static_cast<float>((static_cast<double>(logits_V_[id]) - max_logit_) / temperature_ -
                            log_sum_);
}

}  // namespace taopd
