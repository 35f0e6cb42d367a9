// A score cache in front of a teacher: a request whose scores are there is answered from the disk,
// and every other answer is stored. Scores come back with the same bits. A teacher whose scores are
// not stable (TeacherInfo) gets no cache.
//
// Threads: as TeacherClient. Two threads of the client read and write the cache.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trainer/teacher/cache/score_cache.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

class CachedTeacherClient final : public TeacherClient {
 public:
  // `endpoints` name the teacher in the cache. Without a `teacher` (null), Connect takes what the
  // cache knows of it, and a request that is not in the cache is FAILED_PRECONDITION. Connect is
  // INVALID_ARGUMENT if `revision` is not empty and the cache knows the teacher with another one.
  CachedTeacherClient(std::unique_ptr<ScoreCache> cache, std::vector<std::string> endpoints,
                      std::unique_ptr<TeacherClient> teacher, std::string revision = "");
  ~CachedTeacherClient() override;

  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override;
  absl::Status CheckSize(const TeacherRequest& request, const TeacherInfo& info) const override;
  void Score(TeacherRequest request,
             std::function<void(absl::StatusOr<TeacherScores>)> done) override;
  TeacherClientStats stats() const override;
  const ScoreCache& cache() const { return *cache_; }

 private:
  using Task = std::function<void()>;

  void Enqueue(Task task);
  void RunTasks();
  void LookUp(TeacherRequest request, std::function<void(absl::StatusOr<TeacherScores>)> done);
  // Stores the answer under `identity`, unless that is empty.
  void AskTeacher(TeacherRequest request, const std::string& identity,
                  std::function<void(absl::StatusOr<TeacherScores>)> done);

  static constexpr int kNumThreads = 2;

  const std::unique_ptr<ScoreCache> cache_;
  const std::vector<std::string> endpoints_;
  const std::string expected_revision_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::string revision_ ABSL_GUARDED_BY(mutex_);  // empty until Connect has succeeded
  std::string identity_ ABSL_GUARDED_BY(mutex_);  // of the teacher in the cache
  bool uses_cache_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  TeacherClientStats stats_ ABSL_GUARDED_BY(mutex_);  // requests and failures
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;      // requests that are not answered yet
  int64_t num_asking_ ABSL_GUARDED_BY(mutex_) = 0;    // threads that use teacher_
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;  // the teacher is asked nothing more
  bool is_last_ ABSL_GUARDED_BY(mutex_) = false;      // no task will be added
  std::vector<std::thread> threads_;
  std::unique_ptr<TeacherClient> teacher_;
};

}  // namespace taopd
