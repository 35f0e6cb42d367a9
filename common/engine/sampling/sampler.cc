#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/random.h"
#include "common/engine/sampling/processors.h"
#include "common/engine/sampling/top_ids.h"
#include "kernels/cpu/math/row_math.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

// A uniform takes two 32-bit words of the stream (RandomStream::NextUniform).
double UniformOfStep(uint64_t seed, int64_t step) {
  return RandomStream(seed, 2 * static_cast<uint64_t>(step)).NextUniform();
}

bool NeedsTemperatureOnly(const SamplingParams& params, const SamplingState* state, int64_t step,
                          int64_t vocab_size) {
  return params.num_log_probs == 0 && !params.ranks && !ChangesLogits(params, state, step) &&
         (params.temperature == 0.0f || !IsTruncated(params, vocab_size));
}

Sampler::Sampler() : Sampler(cpu::WidestInstructionSet()) {}

Sampler::Sampler(cpu::InstructionSet set)
    : math_(cpu::WeightRowOf(set)), truncation_(cpu::WeightRowOf(set)) {}

float Sampler::Distribution::LogProb(int32_t id) const {
  return static_cast<float>((static_cast<double>(logits_V[id]) - max) / temperature - log_sum);
}

bool Sampler::SetRow(std::span<const float> logits_V, double temperature, Distribution* row) const {
  const auto vocab_size = static_cast<int64_t>(logits_V.size());
  row->logits_V = logits_V;
  row->temperature = temperature;
  row->lane_max.resize(cpu::NumWeightBlocks(vocab_size) * cpu::kWeightLanes);
  bool valid = false;
  row->max = math_.max(logits_V.data(), vocab_size, row->lane_max.data(), &valid);
  return valid;
}

double Sampler::Sum(Distribution* row, bool store) {
  const auto vocab_size = static_cast<int64_t>(row->logits_V.size());
  row->block_sums.resize(cpu::NumWeightBlocks(vocab_size));
  if (store) weights_V_.resize(vocab_size);
  math_.weights(row->logits_V.data(), vocab_size, row->max,
                static_cast<float>(1.0 / row->temperature), store ? weights_V_.data() : nullptr,
                row->block_sums.data());
  double sum = 0.0;
  for (const double block : row->block_sums) sum += block;
  row->log_sum = std::log(sum);
  return sum;
}

absl::StatusOr<SampledToken> Sampler::Sample(std::span<const float> logits_V,
                                             const SamplingParams& params, SamplingState* state,
                                             int64_t step) {
  const bool greedy = params.temperature == 0.0f;
  const bool valid = SetRow(logits_V, 1.0, &raw_);
  if (!valid || std::isinf(raw_.max))
    return Internal("the model's logits are not finite (largest: ", raw_.max, ")");

  const bool changed = ChangesLogits(params, state, step);
  Distribution* drawn = &raw_;
  if (changed) {
    TAOPD_RETURN_IF_ERROR(Process(params, state, step));
    drawn = &processed_;
  } else if (!greedy && params.temperature != 1.0f) {
    processed_ = raw_;
    drawn = &processed_;
  }
  drawn->temperature = greedy ? 1.0 : static_cast<double>(params.temperature);

  const bool lists = params.num_log_probs > 0;
  const bool lists_raw = lists && params.top_log_probs_mode == LogProbsMode::kRaw;
  const bool truncated = !greedy && IsTruncated(params, static_cast<int64_t>(logits_V.size()));
  double total = 0.0;
  if (!greedy || params.log_probs || (lists && !lists_raw) ||
      (drawn == &raw_ && (params.raw_log_probs || lists_raw))) {
    total = Sum(drawn, truncated);
  }
  if (drawn != &raw_ && (params.raw_log_probs || lists_raw)) Sum(&raw_, /*store=*/false);
  drawn_ = drawn;

  SampledToken token;
  token.id = greedy ? Argmax() : Draw(params, step, total);
  token.log_prob = params.log_probs ? drawn->LogProb(token.id) : kNaN;
  token.raw_log_prob = params.raw_log_probs ? raw_.LogProb(token.id) : kNaN;
  top_ = params.top_log_probs_mode == LogProbsMode::kRaw ? &raw_ : drawn;
  if (params.ranks) {
    token.rank = static_cast<int32_t>(cpu::BestRowMath().count_at_least(
        top_->logits_V.data(), static_cast<int64_t>(logits_V.size()), top_->logits_V[token.id]));
  }
  return token;
}

absl::Status Sampler::Process(const SamplingParams& params, SamplingState* state, int64_t step) {
  logits_V_.assign(raw_.logits_V.begin(), raw_.logits_V.end());
  TAOPD_RETURN_IF_ERROR(ProcessLogits(params, state, step, logits_V_, &mask_words_));
  if (!SetRow(logits_V_, 1.0, &processed_)) {
    return InvalidArgument("repetition_penalty ", params.repetition_penalty,
                           " makes a logit infinite: use one closer to 1");
  }
  if (std::isinf(processed_.max)) {
    return InvalidArgument("no token is possible at step ", step, ": ", NamesOfMasks(params),
                           " forbid every token whose logit is finite");
  }
  return absl::OkStatus();
}

int32_t Sampler::Argmax() const {
  const std::vector<float>& lane_max = drawn_->lane_max;
  const auto lane = std::find(lane_max.begin(), lane_max.end(), drawn_->max) - lane_max.begin();
  const auto block = drawn_->logits_V.begin() + lane / cpu::kWeightLanes * cpu::kWeightBlock;
  return static_cast<int32_t>(std::find(block, drawn_->logits_V.end(), drawn_->max) -
                              drawn_->logits_V.begin());
}

int32_t Sampler::Draw(const SamplingParams& params, int64_t step, double total) {
  const double uniform = UniformOfStep(params.seed, step);
  const std::span<const float> logits_V = drawn_->logits_V;
  if (IsTruncated(params, static_cast<int64_t>(logits_V.size()))) {
    truncation_.Apply(
        {logits_V, weights_V_, drawn_->lane_max, drawn_->block_sums, total, drawn_->max}, params);
    return truncation_.Draw(uniform);
  }
  // The weights of one block suffice.
  const BlockPlace place = FindBlock(drawn_->block_sums, uniform);
  const int64_t begin = place.block * cpu::kWeightBlock;
  const int64_t num = std::min(static_cast<int64_t>(logits_V.size()) - begin, cpu::kWeightBlock);
  weights_V_.resize(std::max<size_t>(weights_V_.size(), cpu::kWeightBlock));
  double sum = 0.0;
  math_.weights(logits_V.data() + begin, num, drawn_->max,
                static_cast<float>(1.0 / drawn_->temperature), weights_V_.data(), &sum);
  return DrawInBlock(place, logits_V.subspan(begin, num),
                     std::span<const float>(weights_V_.data(), num), Cut());
}

void Sampler::AppendTop(int32_t num, std::vector<int32_t>* ids, std::vector<float>* log_probs) {
  TopIds(top_->logits_V, top_->lane_max, num, &top_ids_);
  for (const int32_t id : top_ids_) {
    ids->push_back(id);
    log_probs->push_back(top_->LogProb(id));
  }
}

}  // namespace taopd
