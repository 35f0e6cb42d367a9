// One row of the teacher's head on the CPU: the exact top-k, the tail and the sampled token, from
// float32 logits. A row's result depends only on that row. The functions keep no state; any thread
// may call them with its own scratch. Arrays belong to the caller.
#pragma once

#include <cstdint>
#include <vector>

namespace taopd::cpu {

struct ScoringRowRequest {
  int32_t top_k = 0;       // 0 <= top_k <= V
  double temperature = 1;  // > 0
  bool entropy = false;    // whether to compute it
  bool rank = false;       // whether to compute the sampled token's rank
  // The sampled id in [0, V); null if there is none.
  const int32_t* sampled_id = nullptr;
  // [num_candidates] in [0, V); an id may occur more than once.
  const int32_t* candidate_ids = nullptr;
  int32_t num_candidates = 0;
};

struct ScoringRowResult {
  // [top_k], in descending order of logit; ties go to the lower id.
  int32_t* ids = nullptr;
  float* log_probs = nullptr;            // [top_k]
  float* candidate_log_probs = nullptr;  // [num_candidates]
  float* dense_log_probs = nullptr;      // [V]; null: not computed
  // Log-sum-exp over the complement of ids, minus the normalizer.
  float log_tail = 0;
  // The log-sum-exp over the complement of ids and candidates together, minus the normalizer.
  float candidate_log_tail = 0;
  // Log-sum-exp over ids, minus the normalizer.
  float log_support_mass = 0;
  // The normalizer, of logits / temperature.
  float log_sum_exp = 0;
  float sampled_log_prob = 0;
  // The number of ids whose logit is at least the sampled one's.
  int32_t sampled_rank = 0;
  float entropy = 0;  // nats
};

// Memory that is reused from row to row. Not thread-safe: give each thread its own.
struct ScoringRowScratch {
  std::vector<float> tile_max, tile_order;
  std::vector<int32_t> candidates;
  std::vector<float> taken;
  std::vector<double> taken_scaled, outside_scaled;
};

// Writes the ids of the k largest of logits[V] to ids[k], in descending order; ties go to the lower
// id. NaN counts as -inf.
void TopK(const float* logits, int64_t vocab_size, int32_t k, ScoringRowScratch* scratch,
          int32_t* ids);

// Scores one row. Fills in what the request asks for; the arrays of *result are set by the caller.
// The contents of logits[V] are overwritten. A row with NaN or +inf logits gives NaN numbers, and
// ids that are distinct and in range.
void ScoringRow(const ScoringRowRequest& request, float* logits, int64_t vocab_size,
                ScoringRowScratch* scratch, ScoringRowResult* result);

}  // namespace taopd::cpu
