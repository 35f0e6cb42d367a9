#include "trainer/eval/kl_evaluation.h"

#include <optional>
#include <utility>

#include "common/base/log.h"
#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/scored_batch.h"

namespace taopd {
namespace {

ScoredRollout AsRollout(const PromptRecord& record) {
  ScoredRollout item;
  item.rollout.prompt_ids = record.prompt_ids;
  item.rollout.response_ids = record.response_ids;
  item.rollout.source = record.source;
  item.teacher_prompt_ids = record.teacher_prompt.ids;
  // The response was not sampled, so there are no log-probs; ta_opd does not read them.
  item.rollout.behavior_log_probs.assign(record.response_ids.size(), 0.0f);
  return item;
}

// The sum over the rows of a forward pass.
struct PassSum {
  double sum = 0;
  int64_t num_rows = 0;
};

std::optional<PassSum> FindPass(const EvalJournal* journal, int64_t begin, int64_t end) {
  if (journal == nullptr) return std::nullopt;
  const auto found = journal->rows().find({begin, 0});
  if (found == journal->rows().end()) return std::nullopt;
  const auto& row = found->second;
  for (const char* key : {"end", "sum", "num_rows"})
    if (!row.contains(key) || !row.at(key).is_number()) return std::nullopt;
  if (row.at("end") != end) return std::nullopt;
  return PassSum{row.at("sum").get<double>(), row.at("num_rows").get<int64_t>()};
}

void KeepPass(EvalJournal* journal, int64_t begin, int64_t end, const PassSum& pass) {
  if (journal == nullptr) return;
  const absl::Status written = journal->Add({{"problem", static_cast<uint64_t>(begin)},
                                             {"sample", uint64_t{0}},
                                             {"end", end},
                                             {"sum", pass.sum},
                                             {"num_rows", pass.num_rows}});
  if (!written.ok())
    LogWarning("a part could not be added to the journal of the evaluation", {{"error", written}});
}

}  // namespace

absl::StatusOr<Metrics> EvaluateKl(const KlEvaluationOptions& options,
                                   const std::vector<PromptRecord>& records, Decoder* student,
                                   TeacherClient* teacher) {
  SupportOptions support = {.kind = SupportKind::kTeacher,
                            .teacher_top_k = options.top_k,
                            .vocab_size = student->config().vocab_size};
  std::vector<int64_t> num_tokens;
  for (const PromptRecord& record : records)
    num_tokens.push_back(NumInputTokens(AsRollout(record).rollout));
  const std::vector<int64_t> ends = MicroBatchEnds(num_tokens, options.micro_batch_tokens);
  std::vector<ScoredRollout> missing;  // the records that the journal lacks
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const bool is_kept = FindPass(options.journal, begin, end).has_value();
    for (; begin < end; ++begin) {
      if (!is_kept) missing.push_back(AsRollout(records[begin]));
    }
  }
  std::vector<bool> scored(missing.size(), false);
  const auto batch =
      ScoredBatch::Continue(std::move(missing), std::move(scored),
                            {.teacher = teacher, .support = support, .name = "eval"});
  TAOPD_RETURN_IF_ERROR(batch->WaitScored(0, batch->size(), options.on_wait));
  const HeadOptions head = {.objective = *FindObjective("ta_opd"),
                            .workspace_bytes = options.head_workspace_bytes};

  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t num_rows = 0;
  int64_t next_item = 0;
  begin = 0;
  for (const int64_t end : ends) {
    std::optional<PassSum> pass = FindPass(options.journal, begin, end);
    if (!pass) {
      const auto sequences = batch->Items(next_item, next_item + end - begin);
      next_item += end - begin;
      const HeadTargets targets =
          MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
      pass = PassSum{SumRowLosses(*student, ForwardResponses(student, sequences), targets, head),
                     targets.sampled_ids_N.size(0)};
      KeepPass(options.journal, begin, end, *pass);
      if (end != ends.back()) TAOPD_RETURN_IF_ERROR(options.on_wait());
    }
    sum += pass->sum;
    num_rows += pass->num_rows;
    begin = end;
  }
  return Metrics{{"eval/kl_to_teacher", sum / static_cast<double>(num_rows)},
                 {"eval/n", static_cast<double>(records.size())}};
}

}  // namespace taopd
