#include "kernels/cpu/head/top_k_overlap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/head/lane_threshold.h"
#include "taopd/objective/log_math.h"

namespace taopd::cpu {
namespace {

// Candidates are trimmed when their number has doubled. If at most this many are kept, they are
// trimmed after each column instead, because an accurate threshold then saves more.
constexpr int32_t kMaxTrimmedPerColumn = 64;
std::size_t Capacity(int32_t size) { return 2 * static_cast<std::size_t>(std::max(size, 8)); }

bool Before(const LargestLogits::Candidate& left, const LargestLogits::Candidate& right) {
  return left.logit > right.logit || (left.logit == right.logit && left.id < right.id);
}

// Keeps the first `size` of at least that many candidates. Returns the smallest logit among them.
float Trim(int32_t size, std::vector<LargestLogits::Candidate>* candidates) {
  std::nth_element(candidates->begin(), candidates->begin() + (size - 1), candidates->end(),
                   Before);
  candidates->resize(size);
  return candidates->back().logit;
}

}  // namespace

int64_t LargestLogits::Bytes(int32_t size) {
  return static_cast<int64_t>(sizeof(LargestLogits) + Capacity(size) * sizeof(Candidate));
}

void LargestLogits::Reset(int32_t size) {
  kept_.clear();
  size_ = size;
  // The smallest finite number, because -inf is not a candidate.
  threshold_.store(
      size > 0 ? std::numeric_limits<float>::lowest() : std::numeric_limits<float>::infinity(),
      std::memory_order_relaxed);
}

void LargestLogits::OfferColumn(const float* column, int64_t stride, int64_t num, int32_t first_id,
                                Scratch* scratch) {
  if (size_ == 0) return;
  const auto size = static_cast<std::size_t>(size_);
  float threshold = this->threshold();
  scratch->column.resize(num);
  float* const logits = scratch->column.data();
  for (int64_t i = 0; i < num; ++i) logits[i] = column[i * stride];
  if (num >= size_) threshold = std::max(threshold, LowerBoundOfTopK(logits, num, size_));
  std::vector<Candidate>& candidates = scratch->candidates;
  candidates.clear();
  for (int64_t i = 0; i < num; ++i) {
    if (!(logits[i] >= threshold)) continue;
    candidates.push_back({logits[i], first_id + static_cast<int32_t>(i)});
    if (candidates.size() == Capacity(size_)) threshold = Trim(size_, &candidates);
  }
  if (candidates.empty()) return;
  if (candidates.size() > size) Trim(size_, &candidates);
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.reserve(Capacity(size_));
  const auto trim = [&] { threshold_.store(Trim(size_, &kept_), std::memory_order_relaxed); };
  if (kept_.size() + candidates.size() > Capacity(size_)) trim();
  kept_.insert(kept_.end(), candidates.begin(), candidates.end());
  if (size_ <= kMaxTrimmedPerColumn && kept_.size() >= size) trim();
}

const std::vector<LargestLogits::Candidate>& LargestLogits::Sorted() {
  std::sort(kept_.begin(), kept_.end(), Before);
  if (kept_.size() > static_cast<std::size_t>(size_)) kept_.resize(size_);
  return kept_;
}

void MarkStudentTopK(const int32_t* ids, const float* support_logits, int32_t k,
                     const std::vector<LargestLogits::Candidate>& rest, std::vector<int32_t>* order,
                     uint8_t* in_top_k) {
  order->resize(k);
  std::iota(order->begin(), order->end(), 0);
  const auto candidate = [&](int32_t j) {  // a NaN would break the ordering
    return LargestLogits::Candidate{
        std::isnan(support_logits[j]) ? NegativeInfinity<float>() : support_logits[j], ids[j]};
  };
  std::sort(order->begin(), order->end(),
            [&](int32_t left, int32_t right) { return Before(candidate(left), candidate(right)); });
  std::size_t ahead = 0;  // how many of the rest come first
  for (int32_t i = 0; i < k; ++i) {
    const LargestLogits::Candidate own = candidate((*order)[i]);
    while (ahead < rest.size() && Before(rest[ahead], own)) ++ahead;
    in_top_k[(*order)[i]] = i + static_cast<int64_t>(ahead) < k ? 1 : 0;
  }
}

}  // namespace taopd::cpu
