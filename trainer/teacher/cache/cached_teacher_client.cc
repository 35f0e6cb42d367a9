#include "trainer/teacher/cache/cached_teacher_client.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace taopd {

CachedTeacherClient::CachedTeacherClient(std::unique_ptr<ScoreCache> cache,
                                         std::vector<std::string> endpoints,
                                         std::unique_ptr<TeacherClient> teacher,
                                         std::string revision, std::string model)
    : cache_(std::move(cache)),
      endpoints_(std::move(endpoints)),
      expected_revision_(std::move(revision)),
      model_(std::move(model)),
      has_teacher_(teacher != nullptr),
      teacher_(std::move(teacher)) {}

CachedTeacherClient::~CachedTeacherClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    const auto nobody_asks = [this]()
                                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_asking_ == 0; };
    mutex_.Await(absl::Condition(&nobody_asks));
  }
  teacher_.reset();  // its remaining answers become tasks
  disk_.Shutdown();
}

absl::StatusOr<TeacherInfo> CachedTeacherClient::Connect(absl::Duration timeout) {
  absl::StatusOr<TeacherInfo> info;
  if (teacher_ != nullptr) {
    info = teacher_->Connect(timeout);
    if (!info.ok()) return info;
    const absl::Status stored =
        info->has_stable_scores ? cache_->PutTeacher(endpoints_, model_, *info) : absl::OkStatus();
    if (!stored.ok()) LogWarning("the score cache cannot be written", {{"error", stored}});
  } else {
    info = cache_->FindTeacher(endpoints_, model_);
    if (!info.ok()) {
      return FailedPrecondition("the score cache has no teacher at ", endpoints_[0],
                                model_.empty() ? "" : " with teacher.model = ", model_, ": ",
                                info.status().message());
    }
    if (!expected_revision_.empty() && info->revision != expected_revision_) {
      return InvalidArgument("the score cache knows the teacher at ", endpoints_[0],
                             " with the revision \"", info->revision, "\" instead of \"",
                             expected_revision_, "\", which the configuration asks for");
    }
  }
  absl::MutexLock lock(&mutex_);
  identity_ = info->Identity();
  revision_ = info->revision;
  uses_cache_ = info->has_stable_scores;
  return info;
}

absl::Status CachedTeacherClient::CheckSize(const TeacherRequest& request,
                                            const TeacherInfo& info) const {
  return teacher_ == nullptr ? absl::OkStatus() : teacher_->CheckSize(request, info);
}

void CachedTeacherClient::Score(TeacherRequest request, Done done) {
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.requests;
    ++num_open_;
  }
  auto counted = [this, done = std::move(done)](absl::StatusOr<TeacherScores> scores) {
    {
      absl::MutexLock lock(&mutex_);
      --num_open_;
      stats_.failures += !scores.ok();
    }
    done(std::move(scores));
  };
  disk_.Enqueue([this, request = std::move(request), counted = std::move(counted)]() mutable {
    LookUp(std::move(request), std::move(counted));
  });
}

void CachedTeacherClient::LookUp(TeacherRequest request, Done done) {
  std::string identity, revision;
  bool is_stopping = false, uses_cache = false;
  {
    absl::MutexLock lock(&mutex_);
    identity = identity_;
    revision = revision_;
    uses_cache = uses_cache_;
    is_stopping = is_stopping_;
  }
  if (is_stopping) return done(absl::CancelledError("the teacher client is closing"));
  if (revision.empty()) {
    return done(FailedPrecondition("Score before Connect: the teacher is not known yet"));
  }
  // A malformed request has no entry; the teacher's client reports the fault.
  const bool has_rows = request.score_start >= 1 &&
                        request.score_start < static_cast<int64_t>(request.token_ids.size());
  if (has_rows && uses_cache) {
    std::optional<TeacherScores> found = cache_->Find(request, identity);
    if (found.has_value()) {
      found->revision = revision;
      return done(*std::move(found));
    }
  }
  if (!has_teacher_) {
    return done(FailedPrecondition("request \"", request.request_id,
                                   "\": its scores are not in the cache, and no teacher is asked"));
  }
  {
    absl::MutexLock lock(&mutex_);
    is_stopping = is_stopping_;
    num_asking_ += !is_stopping;
  }
  if (is_stopping) return done(absl::CancelledError("the teacher client is closing"));
  AskTeacher(std::move(request), uses_cache ? identity : "", std::move(done));
  absl::MutexLock lock(&mutex_);
  --num_asking_;
}

void CachedTeacherClient::AskTeacher(TeacherRequest request, const std::string& identity,
                                     Done done) {
  auto kept = std::make_shared<TeacherRequest>(request);
  teacher_->Score(std::move(request), [this, kept, identity, done = std::move(done)](
                                          absl::StatusOr<TeacherScores> scores) mutable {
    // Write on another thread, because `done` of the teacher's client must not block.
    disk_.Enqueue(
        [this, kept, identity, scores = std::move(scores), done = std::move(done)]() mutable {
          if (scores.ok() && !identity.empty()) cache_->Put(*kept, identity, *scores);
          done(std::move(scores));
        });
  });
}

TeacherClientStats CachedTeacherClient::stats() const {
  TeacherClientStats stats;
  if (teacher_ != nullptr) stats = teacher_->stats();
  const ScoreCacheStats cache = cache_->stats();
  stats.cache_hits = cache.hits;
  stats.cache_misses = cache.misses;
  stats.cache_damaged = cache.damaged;
  stats.cache_evicted = cache.evicted;
  stats.cache_evicted_new = cache.evicted_new;
  stats.cache_failed_writes = cache.failed_writes;
  absl::MutexLock lock(&mutex_);
  stats.requests = stats_.requests;
  stats.failures = stats_.failures;
  // The teacher's attempts were counted earlier and include hedges, so the difference may be
  // negative.
  stats.queued = std::max<int64_t>(0, num_open_ - stats.in_flight);
  return stats;
}

}  // namespace taopd
