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

absl::Status NotAmongCandidates() {
  return absl::OutOfRangeError("the candidates of the row do not suffice");
}

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

float Sampler::Distribution::LogProb(int32_t place) const {
  return static_cast<float>((static_cast<double>(logits_N[place]) - max) / temperature - log_sum);
}

double Sampler::Distribution::ScaleOfRest() const {
  return std::exp((static_cast<double>(rest.max) - max) / temperature);
}

bool Sampler::SetRow(std::span<const float> logits_N, const LogitRow::Rest& rest,
                     Distribution* row) const {
  const auto num = static_cast<int64_t>(logits_N.size());
  row->logits_N = logits_N;
  row->rest = rest;
  row->temperature = 1.0;
  row->lane_max.resize(cpu::NumWeightBlocks(num) * cpu::kWeightLanes);
  bool valid = false;
  row->max = math_.max(logits_N.data(), num, row->lane_max.data(), &valid);
  return valid;
}

double Sampler::Sum(Distribution* row, bool store) {
  const auto num = static_cast<int64_t>(row->logits_N.size());
  row->block_sums.resize(cpu::NumWeightBlocks(num));
  if (store) weights_N_.resize(num);
  math_.weights(row->logits_N.data(), num, row->max, static_cast<float>(1.0 / row->temperature),
                store ? weights_N_.data() : nullptr, row->block_sums.data());
  double sum = row->ScaleOfRest() * (row == &raw_ ? row->rest.raw_sum : row->rest.sum);
  for (const double block : row->block_sums) sum += block;
  row->log_sum = std::log(sum);
  return sum;
}

absl::StatusOr<SampledToken> Sampler::Sample(const LogitRow& row, const SamplingParams& params,
                                             const SamplingState* state, int64_t step) {
  row_ = row;
  const bool greedy = params.temperature == 0.0f;
  const bool valid = SetRow(row.logits_N, row.rest, &raw_);
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
  if (!drawn->rest.IsBelow(drawn->max)) return NotAmongCandidates();

  const bool lists = params.num_log_probs > 0;
  const bool lists_raw = lists && params.top_log_probs_mode == LogProbsMode::kRaw;
  const bool stores = !greedy && (row.rest.size > 0 || IsTruncated(params, row.vocab_size()));
  double total = 0.0;
  if (!greedy || params.log_probs || (lists && !lists_raw) ||
      (drawn == &raw_ && (params.raw_log_probs || lists_raw))) {
    total = Sum(drawn, stores);
  }
  if (drawn != &raw_ && (params.raw_log_probs || lists_raw)) Sum(&raw_, /*store=*/false);
  drawn_ = drawn;
  top_ = params.top_log_probs_mode == LogProbsMode::kRaw ? &raw_ : drawn;

  const std::optional<int32_t> place = greedy ? Argmax() : Draw(params, step, total);
  if (!place || !FindTop(params.num_log_probs)) return NotAmongCandidates();
  SampledToken token;
  token.id = row.ids_N.empty() ? *place : row.ids_N[*place];
  token.log_prob = params.log_probs ? drawn->LogProb(*place) : kNaN;
  token.raw_log_prob = params.raw_log_probs ? raw_.LogProb(*place) : kNaN;
  if (params.ranks) {
    const float logit = top_->logits_N[*place];
    if (!top_->rest.IsBelow(logit)) return NotAmongCandidates();
    token.rank = static_cast<int32_t>(cpu::BestRowMath().count_at_least(
        top_->logits_N.data(), static_cast<int64_t>(top_->logits_N.size()), logit));
  }
  return token;
}

absl::Status Sampler::Process(const SamplingParams& params, const SamplingState* state,
                              int64_t step) {
  logits_N_.assign(raw_.logits_N.begin(), raw_.logits_N.end());
  TAOPD_RETURN_IF_ERROR(ProcessLogits(params, state, step, row_.ids_N, logits_N_, &mask_words_));
  LogitRow::Rest rest = raw_.rest;
  if (params.allowed_token_ids) rest.max = -std::numeric_limits<float>::infinity();
  if (!SetRow(logits_N_, rest, &processed_)) {
    return InvalidArgument("repetition_penalty ", params.repetition_penalty,
                           " makes a logit infinite: use one closer to 1");
  }
  if (std::isinf(processed_.max) && std::isinf(rest.max)) {
    return InvalidArgument("no token is possible at step ", step, ": ", NamesOfMasks(params),
                           " forbid every token whose logit is finite");
  }
  return absl::OkStatus();
}

int32_t Sampler::Argmax() const {
  const std::vector<float>& lane_max = drawn_->lane_max;
  const auto lane = std::find(lane_max.begin(), lane_max.end(), drawn_->max) - lane_max.begin();
  const auto block = drawn_->logits_N.begin() + lane / cpu::kWeightLanes * cpu::kWeightBlock;
  return static_cast<int32_t>(std::find(block, drawn_->logits_N.end(), drawn_->max) -
                              drawn_->logits_N.begin());
}

std::optional<int32_t> Sampler::Draw(const SamplingParams& params, int64_t step, double total) {
  const double uniform = UniformOfStep(params.seed, step);
  const std::span<const float> logits_N = drawn_->logits_N;
  if (IsTruncated(params, row_.vocab_size())) {
    if (!truncation_.Apply({logits_N, weights_N_, drawn_->lane_max, drawn_->block_sums, total,
                            drawn_->max, drawn_->rest},
                           params)) {
      return std::nullopt;
    }
    return truncation_.Draw(uniform);
  }
  if (drawn_->rest.size > 0) return DrawAmongCandidates(uniform * total);
  // The weights of one block suffice.
  const BlockPlace place = FindBlock(drawn_->block_sums, uniform);
  const int64_t begin = place.block * cpu::kWeightBlock;
  const int64_t num = std::min(static_cast<int64_t>(logits_N.size()) - begin, cpu::kWeightBlock);
  weights_N_.resize(std::max<size_t>(weights_N_.size(), cpu::kWeightBlock));
  double sum = 0.0;
  math_.weights(logits_N.data() + begin, num, drawn_->max,
                static_cast<float>(1.0 / drawn_->temperature), weights_N_.data(), &sum);
  return DrawInBlock(place, logits_N.subspan(begin, num),
                     std::span<const float>(weights_N_.data(), num), Cut());
}

std::optional<int32_t> Sampler::DrawAmongCandidates(double target) const {
  const double scale = drawn_->ScaleOfRest();
  double cumulative = 0.0;  // without the rest
  for (size_t i = 0; i < drawn_->logits_N.size(); ++i) {
    const double rest_weight = scale * drawn_->rest.sums_before_N[i];
    if (cumulative + rest_weight > target) return std::nullopt;
    cumulative += weights_N_[i];
    if (cumulative + rest_weight > target) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

bool Sampler::FindTop(int32_t num) {
  top_places_.clear();
  if (num == 0) return true;
  if (num > static_cast<int64_t>(top_->logits_N.size())) return false;
  TopIds(top_->logits_N, top_->lane_max, num, &top_places_);
  return top_->rest.IsBelow(top_->logits_N[top_places_.back()]);
}

void Sampler::AppendTop(std::vector<int32_t>* ids, std::vector<float>* log_probs) const {
  for (const int32_t place : top_places_) {
    ids->push_back(row_.ids_N.empty() ? place : row_.ids_N[place]);
    log_probs->push_back(top_->LogProb(place));
  }
}

}  // namespace taopd
