#include "trainer/step/rollouts/pending_step.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"
#include "trainer/step/rollouts/rollout_requests.h"

namespace taopd {
namespace {

template <typename T>
constexpr const char* kDtype = nullptr;
template <>
constexpr const char* kDtype<int32_t> = "I32";
template <>
constexpr const char* kDtype<int64_t> = "I64";
template <>
constexpr const char* kDtype<float> = "F32";
template <>
constexpr const char* kDtype<double> = "F64";

std::string SequenceName(int64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "sequence-%06lld.", static_cast<long long>(number));
  return name;
}

// Writes the tensors of one file. Empty ones are left out; readers treat missing ones as empty.
class Writer {
 public:
  // Owns nothing: `values` must outlive Write.
  template <typename T>
  absl::Status operator()(const std::string& name, const std::vector<T>* values) {
    if (values->empty()) return absl::OkStatus();
    const auto bytes = std::as_bytes(std::span<const T>(*values));
    tensors_.push_back({name, kDtype<T>, {static_cast<int64_t>(values->size())}, bytes});
    return absl::OkStatus();
  }
  absl::Status Write(const std::string& path) const { return WriteSafetensors(path, tensors_); }

 private:
  std::vector<TensorToWrite> tensors_;
};

class Reader {
 public:
  absl::Status Open(const std::string& dir) {
    TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
    for (const std::string& name : names) {
      TAOPD_ASSIGN_OR_RETURN(files_.emplace_back(), SafetensorsFile::Open(dir + "/" + name));
      for (const auto& [tensor, view] : files_.back()->tensors()) tensors_.emplace(tensor, view);
    }
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status operator()(const std::string& name, std::vector<T>* values) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return absl::OkStatus();
    const TensorView& view = found->second;
    if (view.dtype != kDtype<T>) {
      return DataLoss("stored rollouts: ", name, " has the type ", view.dtype, " instead of ",
                      kDtype<T>);
    }
    values->resize(view.bytes.size() / sizeof(T));
    std::memcpy(values->data(), view.bytes.data(), values->size() * sizeof(T));
    return absl::OkStatus();
  }

 private:
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

// The numbers of the step, in the form of tensors.
struct StepNumbers {
  std::vector<double> sums;
  std::vector<int64_t> counts;
};

// Calls visit(double*) or visit(int64_t*) for each number of the step, always in this order.
template <typename Visit>
void ForEachNumber(PendingStep& step, Visit&& visit) {
  visit(&step.mini_batch);
  visit(&step.num_sequences);
  visit(&step.num_mini_batches);
  ForEachSum(visit, step.record.sums);
  visit(&step.record.grad_norm_sum);
  visit(&step.record.num_updates);
  visit(&step.record.num_skipped_updates);
  ForEachSum(visit, step.record.full_kl);
}

struct PutNumber {
  StepNumbers* to;
  void operator()(const double* number) const { to->sums.push_back(*number); }
  void operator()(const int64_t* number) const { to->counts.push_back(*number); }
};

// Counts the numbers that it returns, so that too few or too many are noticed.
struct TakeNumber {
  const StepNumbers* from;
  size_t* num_sums;
  size_t* num_counts;
  void operator()(double* number) const { Take(from->sums, num_sums, number); }
  void operator()(int64_t* number) const { Take(from->counts, num_counts, number); }
  template <typename T>
  static void Take(const std::vector<T>& values, size_t* next, T* number) {
    if (*next < values.size()) *number = values[*next];
    ++*next;
  }
};

// The positions in a rollout's tensor "counts". Files of older versions end after
// kNumBeyondVocabulary or after kLacksTeacherPrompt.
enum CountPosition : size_t {
  kFinishReason,
  kSupportSize,
  kNumShared,
  kNumBeyondVocabulary,
  kLacksTeacherPrompt,
  kIsGiven,
  kNumCounts
};

// The members of a rollout that are not lists, in a file.
struct RolloutNumbers {
  std::vector<int64_t> counts;  // by CountPosition
  std::vector<int64_t> policy_version;
  std::vector<double> weight;
  std::vector<double> reward;  // and advantage; empty in files of runs without rewards
};

// The parts of a rollout that a file may hold.
enum class StoredPart { kIds, kRollout, kScores };

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
  if (part == StoredPart::kIds) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(visit(prefix + "behavior_log_probs", &rollout.behavior_log_probs));
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
             : StoredPart::kIds;
}

RolloutNumbers NumbersOf(const ScoredRollout& item, StoredPart part) {
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

// Sets the members of the rollout that "counts" holds. REQUIRES: none is missing but the last two.
absl::Status SetCounts(const std::vector<int64_t>& counts, int64_t sequence, ScoredRollout* item) {
  const int64_t finish = counts[kFinishReason];
  if (finish != static_cast<int64_t>(FinishReason::kStop) &&
      finish != static_cast<int64_t>(FinishReason::kLength)) {
    return DataLoss("stored rollouts: rollout ", sequence, " has the finish reason ", finish,
                    " instead of ", static_cast<int64_t>(FinishReason::kStop), " (stop) or ",
                    static_cast<int64_t>(FinishReason::kLength), " (length)");
  }
  item->rollout.finish = static_cast<FinishReason>(finish);
  item->rollout.is_given = counts.size() > kIsGiven && counts[kIsGiven] != 0;
  item->scores.support_size = counts[kSupportSize];
  item->scores.num_shared = counts[kNumShared];
  item->scores.num_beyond_vocabulary = counts[kNumBeyondVocabulary];
  item->lacks_teacher_prompt =
      counts.size() > kLacksTeacherPrompt && counts[kLacksTeacherPrompt] != 0;
  return absl::OkStatus();
}

std::string RankFile(int64_t rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "/rank-%05lld.safetensors", static_cast<long long>(rank));
  return name;
}

absl::Status ReadNumbers(Reader& reader, PendingStep* step) {
  StepNumbers numbers;
  std::vector<double> seconds;
  TAOPD_RETURN_IF_ERROR(reader("sums", &numbers.sums));
  TAOPD_RETURN_IF_ERROR(reader("counts", &numbers.counts));
  TAOPD_RETURN_IF_ERROR(reader("seconds", &seconds));
  size_t num_sums = 0, num_counts = 0;
  ForEachNumber(*step, TakeNumber{&numbers, &num_sums, &num_counts});
  if (num_sums != numbers.sums.size() || num_counts != numbers.counts.size() ||
      seconds.size() != 2) {
    return DataLoss("pending step: it has ", numbers.sums.size(), " sums and ",
                    numbers.counts.size(), " counts instead of ", num_sums, " and ", num_counts,
                    ": another version of the program has written it");
  }
  step->record.duration = absl::Seconds(seconds[0]);
  step->longest_mini_batch = absl::Seconds(seconds[1]);
  return absl::OkStatus();
}

// Reads at least this part of a rollout. `is_scored`, if not null, tells whether it has scores,
// which it then may lack.
absl::StatusOr<ScoredRollout> ReadRollout(Reader& reader, int64_t sequence, StoredPart part,
                                          bool* is_scored = nullptr) {
  ScoredRollout item;
  RolloutNumbers numbers;
  TAOPD_RETURN_IF_ERROR(VisitRollout(SequenceName(sequence), part, &item, &numbers, reader));
  const bool has_scores =
      is_scored != nullptr ? !numbers.weight.empty() : part == StoredPart::kScores;
  if (is_scored != nullptr) *is_scored = has_scores;
  const size_t rows = item.rollout.response_ids.size();
  const bool is_whole =
      numbers.counts.size() > kNumBeyondVocabulary && numbers.counts.size() <= kNumCounts &&
      rows > 0 && (numbers.reward.empty() || numbers.reward.size() == 2) &&
      (part == StoredPart::kIds || item.rollout.behavior_log_probs.size() == rows) &&
      (!has_scores || (numbers.weight.size() == 1 && item.scores.log_tail.size() == rows &&
                       item.scores.sampled_log_probs.size() == rows &&
                       item.scores.ids.size() == item.scores.log_probs.size()));
  if (!is_whole) return DataLoss("stored rollouts: rollout ", sequence, " is not complete");
  if (!numbers.policy_version.empty()) item.rollout.policy_version = numbers.policy_version[0];
  TAOPD_RETURN_IF_ERROR(SetCounts(numbers.counts, sequence, &item));
  if (!numbers.reward.empty()) {
    item.reward = numbers.reward[0];
    item.advantage = numbers.reward[1];
  }
  if (has_scores) item.scores.weight = numbers.weight[0];
  return item;
}

}  // namespace

absl::Status WritePendingStep(const PendingStep& step, int64_t rank, const std::string& dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir));
  Writer writer;
  // These must outlive the writer, which refers to them.
  StepNumbers step_numbers;
  std::vector<double> seconds = {absl::ToDoubleSeconds(step.record.duration),
                                 absl::ToDoubleSeconds(step.longest_mini_batch)};
  std::list<RolloutNumbers> rollout_numbers;
  if (rank == 0) {
    PendingStep copy = step;
    ForEachNumber(copy, PutNumber{&step_numbers});
    TAOPD_RETURN_IF_ERROR(writer("sums", &step_numbers.sums));
    TAOPD_RETURN_IF_ERROR(writer("counts", &step_numbers.counts));
    TAOPD_RETURN_IF_ERROR(writer("seconds", &seconds));
  }
  for (const auto& [sequence, item] : step.rollouts) {
    const StoredPart part = PartOf(step, sequence);
    RolloutNumbers& numbers = rollout_numbers.emplace_back(NumbersOf(*item, part));
    TAOPD_RETURN_IF_ERROR(VisitRollout(SequenceName(sequence), part, item.get(), &numbers, writer));
  }
  return writer.Write(dir + RankFile(rank));
}

absl::StatusOr<PendingStep> ReadPendingStep(const std::string& dir, const TrainConfig& config,
                                            const Shares& shares, bool is_root) {
  Reader reader;
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
  if (!is_root) step.record.full_kl = FullKl();
  for (const int64_t sequence : SequencesOfStep(config, shares)) {
    TAOPD_ASSIGN_OR_RETURN(ScoredRollout item,
                           ReadRollout(reader, sequence, PartOf(step, sequence)));
    step.rollouts[sequence] = std::make_shared<const ScoredRollout>(std::move(item));
  }
  return step;
}

absl::Status WriteStepsInFlight(const std::vector<StepInFlight>& steps, int64_t rank,
                                const std::string& dir) {
  for (const StepInFlight& step : steps) {
    char name[32];
    std::snprintf(name, sizeof(name), "/step-%06lld", static_cast<long long>(step.step + 1));
    TAOPD_RETURN_IF_ERROR(MakeDirectories(dir + name));
    Writer writer;
    std::list<RolloutNumbers> rollout_numbers;  // must outlive the writer, which refers to them
    for (const auto& [sequence, item] : step.rollouts) {
      const StoredPart part =
          step.scored.contains(sequence) ? StoredPart::kScores : StoredPart::kRollout;
      RolloutNumbers& numbers = rollout_numbers.emplace_back(NumbersOf(*item, part));
      TAOPD_RETURN_IF_ERROR(
          VisitRollout(SequenceName(sequence), part, item.get(), &numbers, writer));
    }
    TAOPD_RETURN_IF_ERROR(writer.Write(dir + name + RankFile(rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepInFlight>> ReadStepsInFlight(const std::string& dir,
                                                            const TrainConfig& config,
                                                            const Shares& shares) {
  TAOPD_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(dir));
  std::sort(names.begin(), names.end());
  std::vector<StepInFlight> steps;
  for (const std::string& name : names) {
    StepInFlight& step = steps.emplace_back();
    if (name.rfind("step-", 0) != 0 || !absl::SimpleAtoi(name.substr(5), &step.step))
      return DataLoss(dir, ": ", name, " is not the name of a step");
    --step.step;
    Reader reader;
    TAOPD_RETURN_IF_ERROR(reader.Open(dir + "/" + name));
    for (const int64_t sequence : SequencesOfStep(config, shares)) {
      bool is_scored = false;
      auto item = ReadRollout(reader, sequence, StoredPart::kScores, &is_scored);
      if (!item.ok()) return Annotate(item.status(), dir + "/" + name);
      if (is_scored) step.scored.insert(sequence);
      step.rollouts[sequence] = std::make_shared<const ScoredRollout>(*std::move(item));
      if (step.rollouts[sequence]->rollout.policy_version != step.policy_version()) {
        return DataLoss(dir, "/", name, ": rollout ", sequence,
                        " comes from weights that differ from those of the others");
      }
    }
  }
  return steps;
}

}  // namespace taopd
