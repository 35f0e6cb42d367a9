#include "trainer/commands/train/evaluation/evaluation_part.h"

#include <utility>

#include "trainer/dist/rank_sums.h"

namespace taopd {
namespace {

// Combines the metrics of each rank on its records into those on all records.
absl::Status JoinKl(const std::vector<PromptRecord>& records, ProcessGroup* group,
                    Metrics* metrics) {
  int64_t num_tokens = 0;
  for (const PromptRecord& record : records) {
    num_tokens += static_cast<int64_t>(record.response_ids.size());
  }
  double* kl = nullptr;
  RankSums sums;
  sums.Add(&num_tokens);
  for (auto& [name, value] : *metrics) {
    if (name == "eval/kl_to_teacher") {
      kl = &value;
      value *= static_cast<double>(num_tokens);
    }
    sums.Add(&value);
  }
  TAOPD_RETURN_IF_ERROR(sums.Reduce(group));
  if (kl != nullptr) *kl /= static_cast<double>(num_tokens);
  return absl::OkStatus();
}

}  // namespace

EvaluationPart::EvaluationPart(const TrainConfig& config, const std::vector<PromptRecord>& problems,
                               ProcessGroup* group)
    : records(&problems) {
  const int64_t world_size = group->world_size(), rank = group->rank();
  if (world_size == 1) return;
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    exchanges = true;
    return;
  }
  // Sums over parts would round differently from the sum over all.
  const auto size = static_cast<int64_t>(problems.size());
  is_divided =
      config.eval.measure == EvalMeasure::kKl && size >= world_size && !config.dist.deterministic;
  has_work = is_divided || group->is_root();
  if (!is_divided) return;
  mine_.assign(problems.begin() + size * rank / world_size,
               problems.begin() + size * (rank + 1) / world_size);
  records = &mine_;
}

absl::StatusOr<std::vector<std::string>> GatherOutcomes(ProcessGroup* group,
                                                        const absl::StatusOr<std::string>& mine) {
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(mine.status()));
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    TAOPD_ASSIGN_OR_RETURN(all.emplace_back(), group->BroadcastText(*mine, rank));
  }
  return all;
}

absl::StatusOr<EvalResult> CombineParts(const EvaluationPart& part, ProcessGroup* group,
                                        absl::StatusOr<EvalResult> mine) {
  // Ranks without work wait here.
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(mine.status()));
  if (part.is_divided) TAOPD_RETURN_IF_ERROR(JoinKl(*part.records, group, &mine->metrics));
  return mine;
}

}  // namespace taopd
