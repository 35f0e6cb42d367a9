#include "trainer/step/scored_batch.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace taopd {

ScoredBatch::ScoredBatch(int64_t size, BatchScoring scoring)
    : scoring_(std::move(scoring)),
      start_(scoring_.timeline != nullptr ? scoring_.timeline->Now() : absl::InfinitePast()),
      items_(size),
      asked_at_(scoring_.timeline != nullptr ? size : 0),
      generated_(size, false),
      scored_(size, false),
      num_missing_(size, scoring_.rewards != nullptr ? 2 : 1),
      num_generating_(size) {}

std::shared_ptr<ScoredBatch> ScoredBatch::Start(RolloutEngine* engine,
                                                std::vector<RolloutRequest> requests,
                                                BatchScoring scoring) {
  std::shared_ptr<ScoredBatch> batch(
      new ScoredBatch(static_cast<int64_t>(requests.size()), std::move(scoring)));
  if (!requests.empty()) batch->policy_version_ = requests.front().policy_version;
  engine->Generate(std::move(requests), [batch](int64_t index, absl::StatusOr<Rollout> rollout) {
    batch->OnRollout(index, std::move(rollout));
  });
  return batch;
}

std::shared_ptr<ScoredBatch> ScoredBatch::Continue(std::vector<ScoredRollout> items,
                                                   std::vector<bool> scored, BatchScoring scoring) {
  const auto size = static_cast<int64_t>(items.size());
  std::shared_ptr<ScoredBatch> batch(new ScoredBatch(size, std::move(scoring)));
  batch->items_ = std::move(items);
  {
    absl::MutexLock lock(&batch->mutex_);
    batch->generated_.assign(static_cast<size_t>(size), true);
    batch->scored_ = std::move(scored);
    batch->num_generating_ = 0;
  }
  for (int64_t i = 0; i < size; ++i) {
    batch->AskTeacherAfter(i);
    if (batch->scoring_.rewards != nullptr) batch->AskForRewards(i);
  }
  return batch;
}

void ScoredBatch::OnRollout(int64_t index, absl::StatusOr<Rollout> rollout) {
  if (KeepRollout(index, std::move(rollout))) {
    if (scoring_.timeline != nullptr) {
      scoring_.timeline->Add(TimelineTrack::kRollout, Concat(scoring_.name, "-", index), start_,
                             scoring_.timeline->Now());
    }
    AskTeacherAfter(index);
    if (scoring_.rewards != nullptr) AskForRewards(index);
  }
  // This comes last, because a waiter may destroy the teacher's client, which the lines above use,
  // as soon as nothing is being generated.
  absl::MutexLock lock(&mutex_);
  --num_generating_;
}

void ScoredBatch::AskTeacherAfter(int64_t index) {
  const ScoredRollout& item = items_[index];
  if (scoring_.views == nullptr)
    return AskTeacher({index, item.teacher_prompt_ids, item.lacks_teacher_prompt});
  for (TeacherView& view : scoring_.views->AddRollout(index, item.rollout))
    AskTeacher(std::move(view));
}

void ScoredBatch::AskTeacher(TeacherView view) {
  const int64_t index = view.index;
  ScoredRollout& item = items_[index];
  item.teacher_prompt_ids = std::move(view.prompt_ids);
  item.lacks_teacher_prompt = view.is_missing;
  if (scoring_.timeline != nullptr) asked_at_[index] = scoring_.timeline->Now();
  {
    absl::MutexLock lock(&mutex_);
    if (scored_[index]) return;
    ++num_scoring_;
  }
  scoring_.teacher->Score(
      MakeTeacherRequest(scoring_.support, item.rollout, Concat(scoring_.name, "-", index),
                         item.teacher_prompt_ids),
      [self = shared_from_this(), index](absl::StatusOr<TeacherScores> reply) {
        self->OnScores(index, std::move(reply));
      });
}

bool ScoredBatch::KeepRollout(int64_t index, absl::StatusOr<Rollout> rollout) {
  absl::MutexLock lock(&mutex_);
  if (!rollout.ok()) {
    error_.Update(Annotate(rollout.status(), Concat("rollout ", index)));
    return false;
  }
  if (rollout->policy_version != policy_version_) {
    error_.Update(FailedPrecondition("rollout ", index, " comes from the weights after step ",
                                     rollout->policy_version, " instead of step ",
                                     policy_version_));
    return false;
  }
  items_[index].rollout = *std::move(rollout);
  generated_[index] = true;
  return error_.ok();
}

void ScoredBatch::OnScores(int64_t index, absl::StatusOr<TeacherScores> reply) {
  absl::StatusOr<SupportScores> scores =
      reply.ok() ? ReduceToSupport(scoring_.support, items_[index].rollout, *std::move(reply))
                 : absl::StatusOr<SupportScores>(reply.status());
  if (scoring_.timeline != nullptr) {
    scoring_.timeline->Add(TimelineTrack::kTeacher, Concat(scoring_.name, "-", index),
                           asked_at_[index], scoring_.timeline->Now());
  }
  absl::MutexLock lock(&mutex_);
  --num_scoring_;
  if (!scores.ok()) {
    error_.Update(Annotate(scores.status(), Concat("teacher scores of rollout ", index)));
    return;
  }
  items_[index].scores = *std::move(scores);
  RecordArrival(index);
}

void ScoredBatch::AskForRewards(int64_t index) {
  const Rollout& rollout = items_[index].rollout;
  if (rollout.is_given) {  // the other responses to its prompt are given, too
    absl::MutexLock lock(&mutex_);
    if (!scored_[index]) RecordArrival(index);
    return;
  }
  std::optional<RewardGroup> group = scoring_.rewards->AddRollout(index, rollout);
  if (!group) return;
  const int64_t first = group->first;
  {
    absl::MutexLock lock(&mutex_);
    const auto begin = scored_.begin() + first;
    const bool has_all =
        std::all_of(begin, begin + scoring_.rewards->group_size(), [](bool flag) { return flag; });
    if (has_all) return;
    ++num_scoring_;
  }
  scoring_.rewards->Ask(*std::move(group),
                        [self = shared_from_this(), first](absl::StatusOr<RewardedGroup> rewarded) {
                          self->OnRewards(first, std::move(rewarded));
                        });
}

void ScoredBatch::OnRewards(int64_t first, absl::StatusOr<RewardedGroup> rewarded) {
  absl::MutexLock lock(&mutex_);
  --num_scoring_;
  if (!rewarded.ok()) {
    error_.Update(Annotate(rewarded.status(), Concat("rewards of the rollouts from ", first)));
    return;
  }
  for (int64_t i = 0; i < scoring_.rewards->group_size(); ++i) {
    if (scored_[first + i]) continue;  // its reward does not change any more
    items_[first + i].reward = rewarded->rewards[i];
    items_[first + i].advantage = rewarded->advantages[i];
    RecordArrival(first + i);
  }
}

void ScoredBatch::RecordArrival(int64_t index) { scored_[index] = --num_missing_[index] == 0; }

absl::Status ScoredBatch::WaitFor(const std::vector<bool> ScoredBatch::*flags, int64_t begin,
                                  int64_t end, const std::function<absl::Status()>& on_wait) {
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<bool>& set = this->*flags;
    return !error_.ok() ||
           std::all_of(set.begin() + begin, set.begin() + end, [](bool flag) { return flag; });
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::Seconds(1))) return error_;
    }
    TAOPD_RETURN_IF_ERROR(on_wait());
  }
}

absl::Status ScoredBatch::WaitScored(int64_t begin, int64_t end,
                                     const std::function<absl::Status()>& on_wait) {
  return WaitFor(&ScoredBatch::scored_, begin, end, on_wait);
}

void ScoredBatch::WaitAllGenerated() {
  absl::MutexLock lock(&mutex_);
  const auto generated = [&]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_generating_ == 0; };
  mutex_.Await(absl::Condition(&generated));
}

void ScoredBatch::WaitIdle() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_generating_ == 0 && num_scoring_ == 0;
  };
  mutex_.Await(absl::Condition(&idle));
}

std::vector<bool> ScoredBatch::scored() const {
  absl::MutexLock lock(&mutex_);
  return scored_;
}

absl::Status ScoredBatch::AllGenerated() const {
  absl::MutexLock lock(&mutex_);
  const bool is_whole = std::ranges::all_of(generated_, [](bool flag) { return flag; });
  return is_whole ? absl::OkStatus() : error_;
}

std::vector<const ScoredRollout*> ScoredBatch::Items(int64_t begin, int64_t end) const {
  std::vector<const ScoredRollout*> items;
  for (int64_t i = begin; i < end; ++i) items.push_back(&items_[i]);
  return items;
}

}  // namespace taopd
