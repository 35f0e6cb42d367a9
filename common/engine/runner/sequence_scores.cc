#include "common/engine/runner/sequence_scores.h"

#include <cmath>
#include <map>
#include <tuple>

#include "common/base/check.h"
#include "kernels/torch/head/scoring_head.h"

namespace taopd {
namespace {

// Parts are computed together if their kinds are equal.
using PartKind = std::tuple<int32_t, float, bool, bool, bool, int32_t>;

PartKind KindOf(const ScoreParams& params) {
  return {params.top_k, params.temperature, params.entropy,
          params.rank,  params.dense,       params.num_candidates};
}

// Appends `num` rows of `tensor`, from row `first` on. REQUIRES: a contiguous tensor of T on the
// CPU.
template <typename T>
void AppendRows(const at::Tensor& tensor, int64_t first, int64_t num, std::vector<T>* to) {
  const int64_t row_size = tensor.dim() == 1 ? 1 : tensor.size(1);
  const T* from = tensor.const_data_ptr<T>() + first * row_size;
  to->insert(to->end(), from, from + num * row_size);
}

// Returns the ids of all parts, concatenated, in host memory, where the head checks them;
// ids_of(part) points to those of a part.
template <typename IdsOf>
at::Tensor GatherIds(const std::vector<const ScoredPart*>& parts, int64_t ids_per_row,
                     const IdsOf& ids_of) {
  std::vector<int32_t> ids;
  for (const ScoredPart* part : parts) {
    const int32_t* from = ids_of(*part);
    ids.insert(ids.end(), from, from + part->hidden_RH.size(0) * ids_per_row);
  }
  return at::tensor(ids, at::kInt);
}

// Appends the numbers of `num` rows of the output, from row `first` on, to the sequence's scores.
void AppendScores(const ScoringOutput& output, int64_t first, int64_t num, Sequence* sequence) {
  const ScoreParams& params = *sequence->request.score;
  if (!sequence->score) sequence->score.emplace();
  ScoreRows& rows = *sequence->score;
  const float* log_probs = output.sampled_log_probs_N.const_data_ptr<float>() + first;
  // A NaN or +inf among a row's logits makes its normalizer NaN, and with it every log-prob.
  for (int64_t r = 0; r < num; ++r) {
    if (!std::isnan(log_probs[r])) continue;
    sequence->status = Internal("the model's logits for position ",
                                params.start + rows.num_rows + r, " are not finite");
    sequence->finished = true;
    return;
  }
  rows.num_rows += num;
  rows.top_k = params.top_k;
  const auto append = [&](const at::Tensor& tensor, auto* to) {
    AppendRows(tensor, first, num, to);
  };
  append(output.sampled_log_probs_N, &rows.sampled_log_probs);
  if (params.top_k > 0) {
    append(output.ids_Nk, &rows.ids);
    append(output.log_probs_Nk, &rows.log_probs);
  }
  append(output.log_tail_N, &rows.log_tail);
  if (params.rank) append(output.sampled_ranks_N, &rows.sampled_ranks);
  if (params.entropy) append(output.entropy_N, &rows.entropy);
  if (params.num_candidates > 0) {
    append(output.candidate_log_probs_NM, &rows.candidate_log_probs);
    append(output.candidate_log_tail_N, &rows.candidate_log_tail);
  }
  if (params.dense) append(output.dense_log_probs_NV, &rows.dense_log_probs);
  if (params.support_stats) {
    append(output.log_support_mass_N, &rows.log_support_mass);
    append(output.log_sum_exp_N, &rows.log_sum_exp);
  }
}

void ScoreAlike(const std::vector<const ScoredPart*>& parts, Decoder* decoder,
                int64_t workspace_bytes) {
  const ScoreParams& params = *parts[0]->sequence->request.score;
  ScoringOptions options;
  options.top_k = params.top_k;
  options.temperature = params.temperature;
  options.entropy = params.entropy;
  options.rank = params.rank;
  options.dense = params.dense;
  options.workspace_bytes = workspace_bytes;

  std::vector<at::Tensor> hidden;
  for (const ScoredPart* part : parts) hidden.push_back(part->hidden_RH);
  const at::Tensor sampled_ids_N = GatherIds(parts, 1, [](const ScoredPart& part) {
    const InferenceRequest& request = part.sequence->request;
    return request.token_ids.data() + request.score->start + part.first_row;
  });
  at::Tensor candidate_ids_NM;
  if (params.num_candidates > 0) {
    candidate_ids_NM = GatherIds(parts, params.num_candidates, [](const ScoredPart& part) {
      const ScoreParams& score = *part.sequence->request.score;
      return score.candidate_ids.data() + part.first_row * score.num_candidates;
    });
    candidate_ids_NM = candidate_ids_NM.view({-1, params.num_candidates});
  }
  const ScoringOutput output = decoder->ScoreRows(hidden.size() == 1 ? hidden[0] : at::cat(hidden),
                                                  sampled_ids_N, candidate_ids_NM, options);
  int64_t first = 0;
  for (const ScoredPart* part : parts) {
    AppendScores(output, first, part->hidden_RH.size(0), part->sequence);
    first += part->hidden_RH.size(0);
  }
}

}  // namespace

void ScoreParts(const std::vector<ScoredPart>& parts, Decoder* decoder, int64_t workspace_bytes) {
  std::map<PartKind, std::vector<const ScoredPart*>> by_kind;
  for (const ScoredPart& part : parts) {
    const int64_t num_done = part.sequence->score ? part.sequence->score->num_rows : 0;
    TAOPD_CHECK_EQ(part.first_row, num_done);
    by_kind[KindOf(*part.sequence->request.score)].push_back(&part);
  }
  for (const auto& [kind, alike] : by_kind) ScoreAlike(alike, decoder, workspace_bytes);
}

}  // namespace taopd
