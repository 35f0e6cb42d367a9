// One row of the teacher's head on the CPU: exact top-k, tail, sampled token, from float32 logits.
// Raw pointers, no state; any thread. A row's answer depends on that row only.
#pragma once

#include <cstdint>
#include <vector>

namespace taopd::cpu {

struct ScoringRowRequest {
  int32_t top_k = 0;  // 0 <= top_k <= V
  double temperature = 1;
  bool entropy = false;
  bool rank = false;
  const int32_t* sampled_id = nullptr;     // null: none; in [0, V)
  const int32_t* candidate_ids = nullptr;  // [num_candidates], in [0, V), may repeat
  int32_t num_candidates = 0;
};

struct ScoringRowResult {
  int32_t* ids = nullptr;      // [top_k], the caller's; by falling logit, ties by lowest id
  float* log_probs = nullptr;  // [top_k], the caller's
  float* candidate_log_probs = nullptr;  // [num_candidates], the caller's
  float* dense_log_probs = nullptr;      // [V], the caller's; null: not asked for
  float log_tail = 0;            // log-sum-exp over the complement of ids, minus the normaliser
  float candidate_log_tail = 0;  // the same of ids and candidates together
  float log_support_mass = 0;
  float log_sum_exp = 0;  // the normaliser, of logits / temperature
  float sampled_log_prob = 0;
  int32_t sampled_rank = 0;  // number of ids with a logit >= the sampled one's
  float entropy = 0;         // nats
};

// Memory that rows share one after the other; one per thread.
struct ScoringRowScratch {
  std::vector<float> tile_max, tile_order;
  std::vector<int32_t> candidates;
  std::vector<float> taken;
  std::vector<double> taken_scaled, outside_scaled;
};

// The ids of the k largest of logits[V], largest first, ties by lowest id. NaN counts as -inf.
void TopK(const float* logits, int64_t vocabulary_size, int32_t k, ScoringRowScratch* scratch,
          int32_t* ids);

// Spoils logits[V]. A row with NaN or +inf logits gives NaN numbers and ids that are distinct and
// in range.
void ScoringRow(const ScoringRowRequest& request, float* logits, int64_t vocabulary_size,
                ScoringRowScratch* scratch, ScoringRowResult* result);

}  // namespace taopd::cpu
