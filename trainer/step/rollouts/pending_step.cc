#include "trainer/step/rollouts/pending_step.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <list>
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/step/rollouts/number_lists.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

std::string SequenceName(int64_t number) { return absl::StrFormat("sequence-%06d.", number); }

// Pointers to the numbers of a step, always in this order. A file stores their values as tensors.
struct StepNumbers {
  std::vector<double*> sums;
  std::vector<int64_t*> counts;
  void operator()(double* number) { sums.push_back(number); }
  void operator()(int64_t* number) { counts.push_back(number); }
};

StepNumbers NumbersOf(PendingStep* step) {
  StepNumbers numbers;
  numbers(&step->mini_batch);
  numbers(&step->num_sequences);
  numbers(&step->num_mini_batches);
  const auto add = [&](auto* number) { numbers(number); };
  ForEachSum(add, step->record.sums);
  numbers(&step->record.grad_norm_sum);
  numbers(&step->record.num_updates);
  numbers(&step->record.num_skipped_updates);
  ForEachSum(add, step->record.full_kl);
  return numbers;
}

template <typename T>
std::vector<T> ValuesOf(const std::vector<T*>& numbers) {
  std::vector<T> values;
  for (const T* number : numbers) values.push_back(*number);
  return values;
}

// The positions in a rollout's tensor "counts".
enum CountPosition : size_t {
  kFinishReason,
  kSupportSize,
  kNumShared,
  kNumBeyondVocabulary,
  kLacksTeacherPrompt,
  kIsGiven,
  kNumCounts
};

// The members of a rollout that are not lists, in a file. `weight` and `reward` are empty with
// StoredPart::kRollout.
struct RolloutNumbers {
  std::vector<int64_t> counts;  // by CountPosition
  std::vector<int64_t> policy_version;
  std::vector<double> weight;
  std::vector<double> reward;  // and advantage
};

// The parts of a rollout that a file may hold.
enum class StoredPart { kTokens, kRollout, kScores };

// Item is ScoredRollout, or const ScoredRollout for writing.
template <typename Item, typename Visit>
absl::Status VisitRollout(const std::string& prefix, StoredPart part, Item* item,
                          RolloutNumbers* numbers, Visit& visit) {
  auto& rollout = item->rollout;
  auto& scores = item->scores;
  TAOPD_RETURN_IF_ERROR(visit(prefix + "counts", &numbers->counts));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "policy_version", &numbers->policy_version));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "prompt_ids", &rollout.prompt_ids));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "response_ids", &rollout.response_ids));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "reward", &numbers->reward));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "behavior_log_probs", &rollout.behavior_log_probs));
  if (part == StoredPart::kTokens) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(visit(prefix + "top_ids", &rollout.top_ids));
  if (part == StoredPart::kRollout) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(visit(prefix + "ids", &scores.ids));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "log_probs", &scores.log_probs));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "log_tail", &scores.log_tail));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "sampled_log_probs", &scores.sampled_log_probs));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "entropy", &scores.entropy));
  TAOPD_RETURN_IF_ERROR(visit(prefix + "dense_log_probs", &scores.dense_log_probs));
  return visit(prefix + "weight", &numbers->weight);
}

// Returns what the rest of the step needs of the rollout.
StoredPart PartOf(const PendingStep& step, int64_t sequence) {
  return sequence >= step.num_sequences / step.num_mini_batches * step.mini_batch
             ? StoredPart::kScores
             : StoredPart::kTokens;
}

RolloutNumbers StoredNumbersOf(const ScoredRollout& item, StoredPart part) {
  RolloutNumbers numbers;
  numbers.policy_version = {item.rollout.policy_version};
  numbers.counts.resize(kNumCounts);
  numbers.counts[kFinishReason] = static_cast<int64_t>(item.rollout.finish);
  numbers.counts[kIsGiven] = item.rollout.is_given ? 1 : 0;
  if (part == StoredPart::kRollout) return numbers;
  const SupportScores& scores = item.scores;
  numbers.counts[kSupportSize] = scores.support_size;
  numbers.counts[kNumShared] = scores.num_shared;
  numbers.counts[kNumBeyondVocabulary] = scores.num_beyond_vocabulary;
  numbers.counts[kLacksTeacherPrompt] = item.lacks_teacher_prompt ? 1 : 0;
  numbers.reward = {item.reward, item.advantage};
  numbers.weight = {scores.weight};
  return numbers;
}

// Writes rollouts and other lists to one file.
class RolloutWriter : public NumberListWriter {
 public:
  // Adds a part of a rollout, which must outlive Write.
  absl::Status AddRollout(int64_t sequence, const ScoredRollout& item, StoredPart part) {
    RolloutNumbers& numbers = rollout_numbers_.emplace_back(StoredNumbersOf(item, part));
    return VisitRollout(SequenceName(sequence), part, &item, &numbers, *this);
  }

 private:
  std::list<RolloutNumbers> rollout_numbers_;  // the lists of the file refer to them
};

// Sets the members of the rollout that "counts" holds. REQUIRES: it has kNumCounts.
absl::Status SetCounts(const std::vector<int64_t>& counts, int64_t sequence, ScoredRollout* item) {
  const int64_t finish = counts[kFinishReason];
  if (finish != static_cast<int64_t>(FinishReason::kStop) &&
      finish != static_cast<int64_t>(FinishReason::kLength)) {
    return DataLoss("stored rollouts: rollout ", sequence, " has the finish reason ", finish,
                    " instead of ", static_cast<int64_t>(FinishReason::kStop), " (stop) or ",
                    static_cast<int64_t>(FinishReason::kLength), " (length)");
  }
  item->rollout.finish = static_cast<FinishReason>(finish);
  item->rollout.is_given = counts[kIsGiven] != 0;
  item->scores.support_size = counts[kSupportSize];
  item->scores.num_shared = counts[kNumShared];
  item->scores.num_beyond_vocabulary = counts[kNumBeyondVocabulary];
  item->lacks_teacher_prompt = counts[kLacksTeacherPrompt] != 0;
  return absl::OkStatus();
}

std::string RankFile(int64_t rank) { return absl::StrFormat("/rank-%05d.safetensors", rank); }

absl::Status ReadNumbers(NumberListReader& reader, PendingStep* step) {
  std::vector<double> sums, seconds;
  std::vector<int64_t> counts;
  TAOPD_RETURN_IF_ERROR(reader("sums", &sums));
  TAOPD_RETURN_IF_ERROR(reader("counts", &counts));
  TAOPD_RETURN_IF_ERROR(reader("seconds", &seconds));
  const StepNumbers numbers = NumbersOf(step);
  if (numbers.sums.size() != sums.size() || numbers.counts.size() != counts.size() ||
      seconds.size() != 2) {
    return DataLoss("pending step: it has ", sums.size(), " sums and ", counts.size(),
                    " counts instead of ", numbers.sums.size(), " and ", numbers.counts.size(),
                    ": another version of the program has written it");
  }
  for (size_t i = 0; i < sums.size(); ++i) *numbers.sums[i] = sums[i];
  for (size_t i = 0; i < counts.size(); ++i) *numbers.counts[i] = counts[i];
  step->record.duration = absl::Seconds(seconds[0]);
  step->longest_mini_batch = absl::Seconds(seconds[1]);
  return absl::OkStatus();
}

// Returns the first of the `changed` settings and facts that would give scores or rewards other
// values, or an empty text.
std::string ChangeOfScores(TrainConfig config, const std::vector<std::string>& changed) {
  const std::set<std::string> facts = {"data_fingerprint", "tokenizer_hash", "teacher_revision",
                                       "teacher_canary"};
  for (const std::string& name : changed) {
    if (facts.contains(name) || name.starts_with("teacher_canary.")) return name;
  }
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    if (!setting.decides_scores) continue;
    if (std::ranges::find(changed, setting.path) != changed.end()) return setting.path;
  }
  return "";
}

// Returns the first of the `changed` settings and facts with which a step may have other prompts,
// another number of rollouts or other limits for them; or an empty text. Rollouts that were drawn
// otherwise, such as at another temperature or with another seed for the same prompts, are used:
// their log-probs are those with which they were drawn.
std::string ChangeOfRollouts(const TrainConfig& config, const std::vector<std::string>& changed) {
  std::set<std::string> deciding = {"data_fingerprint", "data.train_batch_size", "data.shuffle",
                                    "data.max_response_length", "rollout.n"};
  if (config.data.shuffle) deciding.insert("run.seed");
  for (const std::string& name : changed) {
    if (deciding.contains(name)) return name;
  }
  return "";
}

// Returns DATA_LOSS unless the rollout has scores of the form that `support` asks for, and nothing
// has changed that would give them or the reward other values. The size of the vocabulary is not
// compared.
absl::Status CheckScores(const ScoredRollout& item, const SupportOptions& support,
                         const std::string& change) {
  if (!change.empty()) return DataLoss("its scores and rewards are those of another ", change);
  const auto num_rows = static_cast<int64_t>(item.rollout.response_ids.size());
  const auto num_top_ids = static_cast<int64_t>(item.rollout.top_ids.size());
  const int64_t size = int64_t{support.teacher_top_k} + support.student_top_k;
  if (item.scores.support_size != size) {
    return DataLoss("its scores have ", item.scores.support_size,
                    " tokens per position; teacher.top_k and objective need ", size);
  }
  if (num_top_ids != num_rows * support.student_top_k) {
    return DataLoss("it has ", num_top_ids, " of the student's most probable tokens at ", num_rows,
                    " positions; objective.support needs ", support.student_top_k,
                    " at each position");
  }
  if (support.kind == SupportKind::kFullVocabulary && item.scores.dense_log_probs.empty())
    return DataLoss("its scores lack the full vocabulary, which objective needs");
  if (support.teacher_entropy && item.scores.entropy.empty())
    return DataLoss("its scores lack the teacher's entropy, which objective needs");
  return absl::OkStatus();
}

// Returns whether the file has all of the rollout's lists, with lengths that agree.
bool IsComplete(const ScoredRollout& item, const RolloutNumbers& numbers, bool has_scores) {
  const size_t num_rows = item.rollout.response_ids.size();
  const SupportScores& scores = item.scores;
  if (numbers.counts.size() != kNumCounts) return false;
  if (num_rows == 0 || (!numbers.reward.empty() && numbers.reward.size() != 2)) return false;
  if (item.rollout.behavior_log_probs.size() != num_rows) return false;
  if (!has_scores) return true;
  return numbers.weight.size() == 1 && scores.log_tail.size() == num_rows &&
         scores.sampled_log_probs.size() == num_rows &&
         scores.ids.size() == num_rows * static_cast<size_t>(numbers.counts[kSupportSize]) &&
         scores.log_probs.size() == scores.ids.size() &&
         (scores.entropy.empty() || scores.entropy.size() == num_rows) &&
         scores.dense_log_probs.size() % num_rows == 0;
}

absl::Status Incomplete(int64_t sequence) {
  return DataLoss("stored rollouts: rollout ", sequence, " is not complete: it is damaged, or ",
                  "another version of the program has written it");
}

struct StoredRollout {
  ScoredRollout item;
  bool is_scored = false;
};

// Reads this part of a rollout. The scores may be missing.
absl::StatusOr<StoredRollout> ReadRollout(NumberListReader& reader, int64_t sequence,
                                          StoredPart part) {
  StoredRollout stored;
  ScoredRollout& item = stored.item;
  RolloutNumbers numbers;
  TAOPD_RETURN_IF_ERROR(VisitRollout(SequenceName(sequence), part, &item, &numbers, reader));
  stored.is_scored = !numbers.weight.empty();
  if (!IsComplete(item, numbers, stored.is_scored)) return Incomplete(sequence);
  if (!numbers.policy_version.empty()) item.rollout.policy_version = numbers.policy_version[0];
  TAOPD_RETURN_IF_ERROR(SetCounts(numbers.counts, sequence, &item));
  if (!numbers.reward.empty()) {
    item.reward = numbers.reward[0];
    item.advantage = numbers.reward[1];
  }
  if (stored.is_scored) item.scores.weight = numbers.weight[0];
  return stored;
}

// Removes the lists that `support` does not ask for, because either all sequences of a batch must
// have such a list or none.
void DropUnused(const SupportOptions& support, ScoredRollout* item) {
  if (!support.teacher_entropy) item->scores.entropy.clear();
  if (support.student_top_k == 0) item->rollout.top_ids.clear();
}

}  // namespace

absl::Status WritePendingStep(const PendingStep& step, int64_t rank, const std::string& dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir));
  // The writer refers to these, which stay empty on the other ranks.
  std::vector<double> sums, seconds;
  std::vector<int64_t> counts;
  if (rank == 0) {
    PendingStep copy = step;
    const StepNumbers numbers = NumbersOf(&copy);
    sums = ValuesOf(numbers.sums);
    counts = ValuesOf(numbers.counts);
    seconds = {absl::ToDoubleSeconds(step.record.duration),
               absl::ToDoubleSeconds(step.longest_mini_batch)};
  }
  RolloutWriter writer;
  TAOPD_RETURN_IF_ERROR(writer("sums", &sums));
  TAOPD_RETURN_IF_ERROR(writer("counts", &counts));
  TAOPD_RETURN_IF_ERROR(writer("seconds", &seconds));
  for (const auto& [sequence, item] : step.rollouts)
    TAOPD_RETURN_IF_ERROR(writer.AddRollout(sequence, *item, PartOf(step, sequence)));
  return writer.Write(dir + RankFile(rank));
}

absl::StatusOr<PendingStep> ReadPendingStep(const std::string& dir, const TrainConfig& config,
                                            const Shares& shares, bool is_root,
                                            const std::vector<std::string>& changed) {
  NumberListReader reader;
  TAOPD_RETURN_IF_ERROR(reader.Open(dir));
  PendingStep step;
  TAOPD_RETURN_IF_ERROR(ReadNumbers(reader, &step));
  const int64_t num_sequences = config.data.train_batch_size * config.rollout.n;
  const int64_t num_mini_batches = config.data.train_batch_size / config.trainer.mini_batch_size;
  if (step.num_sequences != num_sequences || step.num_mini_batches != num_mini_batches ||
      step.mini_batch < 1 || step.mini_batch >= num_mini_batches) {
    return DataLoss(dir, ": ", step.mini_batch, " of ", step.num_mini_batches,
                    " mini-batches are done, of ", step.num_sequences,
                    " rollouts; the configuration has ", num_mini_batches, " mini-batches of ",
                    num_sequences, " rollouts");
  }
  if (!is_root) step.record.full_kl = FullKlSums();
  const SupportOptions support = MakeSupportOptions(config, /*vocab_size=*/0);
  const std::string change = ChangeOfScores(config, changed);
  for (const int64_t sequence : SequencesOfStep(config, shares)) {
    const StoredPart part = PartOf(step, sequence);
    TAOPD_ASSIGN_OR_RETURN(StoredRollout stored, ReadRollout(reader, sequence, part));
    ScoredRollout& item = stored.item;
    if (part == StoredPart::kScores) {
      if (!stored.is_scored) return Incomplete(sequence);
      if (const absl::Status fits = CheckScores(item, support, change); !fits.ok()) {
        return Annotate(fits, Concat(dir,
                                     ": the step was begun with other settings, and must end "
                                     "with them: rollout ",
                                     sequence));
      }
    }
    DropUnused(support, &item);
    step.rollouts[sequence] = std::make_shared<const ScoredRollout>(std::move(item));
  }
  return step;
}

absl::Status WriteStepsInFlight(const std::vector<StepInFlight>& steps, int64_t rank,
                                const std::string& dir) {
  for (const StepInFlight& step : steps) {
    const std::string step_dir = dir + absl::StrFormat("/step-%06d", step.step + 1);
    TAOPD_RETURN_IF_ERROR(MakeDirectories(step_dir));
    RolloutWriter writer;
    for (const auto& [sequence, item] : step.rollouts) {
      const bool is_scored = step.scored.contains(sequence);
      TAOPD_RETURN_IF_ERROR(writer.AddRollout(
          sequence, *item, is_scored ? StoredPart::kScores : StoredPart::kRollout));
    }
    TAOPD_RETURN_IF_ERROR(writer.Write(step_dir + RankFile(rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepInFlight>> ReadStepsInFlight(
    const std::string& dir, const TrainConfig& config, const Shares& shares,
    const std::vector<std::string>& changed) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
  const SupportOptions support = MakeSupportOptions(config, /*vocab_size=*/0);
  const std::string change = ChangeOfScores(config, changed);
  std::vector<StepInFlight> steps;
  if (const auto other = ChangeOfRollouts(config, changed); !other.empty()) {
    LogWarning("stored rollouts of other settings are dropped, and generated again",
               {{"steps", names.size()}, {"changed", other}});
    return steps;
  }
  for (const std::string& name : names) {
    StepInFlight& step = steps.emplace_back();
    if (name.rfind("step-", 0) != 0 || !absl::SimpleAtoi(name.substr(5), &step.step))
      return DataLoss(dir, ": ", name, " is not the name of a step");
    --step.step;
    NumberListReader reader;
    TAOPD_RETURN_IF_ERROR(reader.Open(dir + "/" + name));
    absl::Status dropped;  // the reason for the first rollout whose scores are dropped
    for (const int64_t sequence : SequencesOfStep(config, shares)) {
      auto stored = ReadRollout(reader, sequence, StoredPart::kScores);
      if (!stored.ok()) return Annotate(stored.status(), dir + "/" + name);
      ScoredRollout& item = stored->item;
      const absl::Status fits = CheckScores(item, support, change);
      if (stored->is_scored && fits.ok()) {
        step.scored.insert(sequence);
      } else if (stored->is_scored) {
        dropped.Update(Annotate(fits, Concat("rollout ", sequence)));
        item.scores = SupportScores();
        item.reward = item.advantage = 0;
      }
      DropUnused(support, &item);
      step.rollouts[sequence] = std::make_shared<const ScoredRollout>(std::move(item));
      if (step.rollouts[sequence]->rollout.policy_version != step.policy_version()) {
        return DataLoss(dir, "/", name, ": rollout ", sequence,
                        " comes from weights that differ from those of the others");
      }
    }
    if (!dropped.ok()) {
      LogWarning("stored scores of other settings or teachers are dropped",
                 {{"step", step.step + 1}, {"first", dropped}});
    }
  }
  return steps;
}

}  // namespace taopd
