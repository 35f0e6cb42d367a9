#include "trainer/eval/kl_evaluation.h"

#include <absl/synchronization/mutex.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/support.h"

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

// Replies may arrive after the caller has stopped waiting, so they are not kept on its stack.
struct Replies {
  explicit Replies(std::vector<ScoredRollout> rollouts)
      : items(std::move(rollouts)), num_open(items.size()) {}
  std::vector<ScoredRollout> items;  // reply i writes item i only
  absl::Mutex mutex;
  size_t num_open ABSL_GUARDED_BY(mutex);
  absl::Status error ABSL_GUARDED_BY(mutex);  // the first one
};

absl::StatusOr<std::vector<ScoredRollout>> ScoreRecords(
    const SupportOptions& support, const std::vector<PromptRecord>& records, TeacherClient* teacher,
    const std::function<absl::Status()>& on_wait) {
  std::vector<ScoredRollout> items;
  for (const PromptRecord& record : records) items.push_back(AsRollout(record));
  const auto replies = std::make_shared<Replies>(std::move(items));
  for (size_t i = 0; i < records.size(); ++i) {
    teacher->Score(MakeTeacherRequest(support, replies->items[i].rollout, Concat("eval-", i),
                                      replies->items[i].teacher_prompt_ids),
                   [replies, support, i](absl::StatusOr<TeacherScores> reply) {
                     ScoredRollout& item = replies->items[i];
                     auto scores = reply.ok()
                                       ? ReduceToSupport(support, item.rollout, *std::move(reply))
                                       : absl::StatusOr<SupportScores>(reply.status());
                     if (scores.ok()) item.scores = *std::move(scores);
                     absl::MutexLock lock(&replies->mutex);
                     if (!scores.ok()) replies->error.Update(scores.status());
                     --replies->num_open;
                   });
  }
  const auto is_done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(replies->mutex) {
    return replies->num_open == 0;
  };
  while (true) {
    {
      absl::MutexLock lock(&replies->mutex);
      if (replies->mutex.AwaitWithTimeout(absl::Condition(&is_done), absl::Seconds(1))) {
        TAOPD_RETURN_IF_ERROR(replies->error);
        return std::move(replies->items);
      }
    }
    if (on_wait) TAOPD_RETURN_IF_ERROR(on_wait());
  }
}

// The sum over the rows of a forward pass.
struct PassSum {
  double sum = 0;
  int64_t num_rows = 0;
};

std::optional<PassSum> FindPass(const EvalJournal* journal, int64_t begin, int64_t end) {
  if (journal == nullptr) return std::nullopt;
  const auto row = journal->rows().find({begin, 0});
  if (row == journal->rows().end() || row->second.value("end", int64_t{-1}) != end ||
      !row->second.contains("sum") || !row->second.at("sum").is_number()) {
    return std::nullopt;
  }
  return PassSum{row->second.at("sum").get<double>(), row->second.value("num_rows", int64_t{0})};
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
  SupportOptions support;
  support.kind = SupportKind::kTeacher;
  support.teacher_top_k = options.top_k;
  support.vocab_size = student->config().vocab_size;
  std::vector<int64_t> num_tokens;
  for (const PromptRecord& record : records)
    num_tokens.push_back(NumInputTokens(AsRollout(record).rollout));
  const std::vector<int64_t> ends = MicroBatchEnds(num_tokens, options.micro_batch_tokens);
  // The records that the journal lacks.
  std::vector<PromptRecord> missing;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (!FindPass(options.journal, begin, end))
      missing.insert(missing.end(), records.begin() + begin, records.begin() + end);
    begin = end;
  }
  TAOPD_ASSIGN_OR_RETURN(const std::vector<ScoredRollout> items,
                         ScoreRecords(support, missing, teacher, options.on_wait));
  HeadOptions head;
  head.objective = *FindObjective("ta_opd");
  head.workspace_bytes = options.head_workspace_bytes;

  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t num_rows = 0;
  size_t next_item = 0;
  begin = 0;
  for (const int64_t end : ends) {
    std::optional<PassSum> pass = FindPass(options.journal, begin, end);
    if (!pass) {
      std::vector<const ScoredRollout*> sequences;
      for (int64_t i = begin; i < end; ++i) sequences.push_back(&items[next_item++]);
      const HeadTargets targets =
          MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
      pass = PassSum{SumRowLosses(*student, ForwardResponses(student, sequences), targets, head),
                     targets.sampled_ids_N.size(0)};
      KeepPass(options.journal, begin, end, *pass);
      const bool is_last = end == ends.back();
      if (options.on_wait && !is_last) TAOPD_RETURN_IF_ERROR(options.on_wait());
    }
    sum += pass->sum;
    num_rows += pass->num_rows;
    begin = end;
  }
  return Metrics{{"eval/kl_to_teacher", sum / static_cast<double>(num_rows)},
                 {"eval/n", static_cast<double>(records.size())}};
}

}  // namespace taopd
