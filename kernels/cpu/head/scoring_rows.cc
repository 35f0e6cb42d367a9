#include "kernels/cpu/head/scoring_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/cpu/head/complement.h"
#include "kernels/cpu/head/lane_threshold.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {
namespace {

// Orders larger logits first, then lower ids. It is a strict weak ordering because NaN is read as
// -inf.
struct Before {
  const float* logits;
  float Key(int32_t id) const {
    return std::isnan(logits[id]) ? NegativeInfinity<float>() : logits[id];
  }
  bool operator()(int32_t left, int32_t right) const {
    const float left_key = Key(left);
    const float right_key = Key(right);
    return left_key > right_key || (left_key == right_key && left < right);
  }
};

// Takes the candidates out of a row without its top-k, each once, and returns their scaled logits.
// A logit that was taken out is -inf.
void TakeOutside(const ScoringRowRequest& request, double scale, float* logits,
                 std::vector<double>* outside_scaled) {
  outside_scaled->clear();
  for (int32_t j = 0; j < request.num_candidates; ++j) {
    float& logit = logits[request.candidate_ids[j]];
    if (logit == NegativeInfinity<float>()) continue;
    outside_scaled->push_back(logit * scale);
    logit = NegativeInfinity<float>();
  }
}

}  // namespace

// Let theta be the k-th largest tile maximum. Each of k tiles has an element >= theta, so the k
// largest numbers are at least theta, and lie in tiles whose maximum is. The row is read once for
// the maxima, and only those tiles are read again. A row with fewer tiles uses lanes instead.
void TopK(const float* logits, int64_t vocab_size, int32_t k, ScoringRowScratch* scratch,
          int32_t* ids) {
  if (k == 0) return;
  std::vector<int32_t>& candidates = scratch->candidates;
  candidates.clear();
  const int64_t num_tiles = CeilDiv(vocab_size, kTileSize);
  // `logits[v] >= theta` would be wrong: with theta = -inf NaNs must count, or there may be fewer
  // than k.
  const auto take = [&](int64_t begin, int64_t end, float theta) {
    for (int64_t first = begin; first < end; first += kComparedAtOnce) {
      const int64_t stop = std::min(end, first + kComparedAtOnce);
      if (stop - first == kComparedAtOnce && AreAllBelow(logits + first, theta)) continue;
      for (int64_t v = first; v < stop; ++v) {
        if (!(logits[v] < theta)) candidates.push_back(static_cast<int32_t>(v));
      }
    }
  };
  if (k >= num_tiles) {
    take(0, vocab_size, LowerBoundOfTopK(logits, vocab_size, k));
  } else {
    scratch->tile_max.resize(num_tiles);
    BestRowMath().tile_max(logits, vocab_size, scratch->tile_max.data());
    scratch->tile_order = scratch->tile_max;
    std::nth_element(scratch->tile_order.begin(), scratch->tile_order.begin() + (k - 1),
                     scratch->tile_order.end(), std::greater<float>());
    const float theta = scratch->tile_order[k - 1];
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      if (scratch->tile_max[tile] < theta) continue;
      take(tile * kTileSize, std::min(vocab_size, (tile + 1) * kTileSize), theta);
    }
  }
  const Before before{logits};
  if (static_cast<std::size_t>(k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), before);
  }
  std::sort(candidates.begin(), candidates.begin() + k, before);
  std::copy_n(candidates.begin(), k, ids);
}

void ScoringRow(const ScoringRowRequest& request, float* logits, int64_t vocab_size,
                ScoringRowScratch* scratch, ScoringRowResult* result) {
  const RowMath& math = BestRowMath();
  const int32_t k = request.top_k;
  const double scale =
      static_cast<float>(1 / request.temperature);  // as the loops over the row use it

  // Everything that reads single logits comes before the top-k are removed from the row.
  const float sampled_logit = request.sampled_id != nullptr ? logits[*request.sampled_id] : 0.0f;
  if (request.sampled_id != nullptr && request.rank) {
    result->sampled_rank =
        static_cast<int32_t>(math.count_at_least(logits, vocab_size, sampled_logit));
  }
  std::vector<float>& taken = scratch->taken;
  taken.resize(std::max(k, request.num_candidates));
  for (int32_t j = 0; j < request.num_candidates; ++j) {
    result->candidate_log_probs[j] = logits[request.candidate_ids[j]];
  }
  if (result->dense_log_probs != nullptr) {
    std::copy_n(logits, vocab_size, result->dense_log_probs);
  }
  TopK(logits, vocab_size, k, scratch, result->ids);
  ExtractLogits(result->ids, k, logits, taken.data());
  std::vector<double>& outside_scaled = scratch->outside_scaled;
  TakeOutside(request, scale, logits, &outside_scaled);

  const ComplementSums rest =
      SumBelow(math, math.max(logits, vocab_size), logits, vocab_size, static_cast<float>(scale));
  const double log_rest = LogSumOf(rest, scale);
  const double log_outside =
      LogSumExp(outside_scaled.data(), static_cast<int32_t>(outside_scaled.size()));
  const double log_tail = LogAddExp(log_rest, log_outside);
  std::vector<double>& taken_scaled = scratch->taken_scaled;
  taken_scaled.resize(k);
  for (int32_t j = 0; j < k; ++j) taken_scaled[j] = taken[j] * scale;
  const double log_support = LogSumExp(taken_scaled.data(), k);
  const double log_sum_exp = LogAddExp(log_tail, log_support);

  result->log_sum_exp = static_cast<float>(log_sum_exp);
  result->log_tail = static_cast<float>(log_tail - log_sum_exp);
  result->candidate_log_tail = static_cast<float>(log_rest - log_sum_exp);
  result->log_support_mass = static_cast<float>(log_support - log_sum_exp);
  for (int32_t j = 0; j < k; ++j)
    result->log_probs[j] = static_cast<float>(taken_scaled[j] - log_sum_exp);
  for (int32_t j = 0; j < request.num_candidates; ++j) {
    result->candidate_log_probs[j] =
        static_cast<float>(result->candidate_log_probs[j] * scale - log_sum_exp);
  }
  if (request.sampled_id != nullptr) {
    result->sampled_log_prob = static_cast<float>(sampled_logit * scale - log_sum_exp);
  }
  if (result->dense_log_probs != nullptr) {
    for (int64_t v = 0; v < vocab_size; ++v) {
      result->dense_log_probs[v] =
          static_cast<float>(result->dense_log_probs[v] * scale - log_sum_exp);
    }
  }
  if (request.entropy) {
    taken_scaled.insert(taken_scaled.end(), outside_scaled.begin(), outside_scaled.end());
    for (double& x : taken_scaled) x -= log_sum_exp;
    result->entropy = static_cast<float>(EntropyOfRow(rest, scale, log_rest - log_sum_exp,
                                                      log_sum_exp, taken_scaled.data(), nullptr,
                                                      static_cast<int32_t>(taken_scaled.size())));
  }
}

}  // namespace taopd::cpu
