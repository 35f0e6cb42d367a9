// A score cache in front of a teacher. A request whose scores are cached is answered from the disk,
// and every other answer is stored. Cached scores have the same bits. A teacher whose scores are
// not stable (TeacherInfo) gets no cache.
//
// Threads: the rules of TeacherClient apply. Two threads of the client read and write the cache.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/worker_pool.h"
#include "trainer/teacher/cache/score_cache.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

class CachedTeacherClient final : public TeacherClient {
 public:
  // `endpoints` and `model` (teacher.model) name the teacher in the cache. If `teacher` is null,
  // Connect returns the information in the cache, and a request that is not cached gets
  // FAILED_PRECONDITION. Connect returns INVALID_ARGUMENT if `revision` is not empty and the cache
  // has the teacher with another revision.
  CachedTeacherClient(std::unique_ptr<ScoreCache> cache, std::vector<std::string> endpoints,
                      std::unique_ptr<TeacherClient> teacher, std::string revision = "",
                      std::string model = "");
  ~CachedTeacherClient() override;

  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override;
  absl::Status CheckSize(const TeacherRequest& request, const TeacherInfo& info) const override;
  void Score(TeacherRequest request, Done done) override;
  TeacherClientStats stats() const override;

 private:
  void LookUp(TeacherRequest request, Done done);
  // Asks the teacher and stores the answer under `identity` unless that is empty.
  void AskTeacher(TeacherRequest request, const std::string& identity, Done done);

  const std::unique_ptr<ScoreCache> cache_;
  const std::vector<std::string> endpoints_;
  const std::string expected_revision_;
  const std::string model_;
  const bool has_teacher_;
  mutable absl::Mutex mutex_;
  std::string revision_ ABSL_GUARDED_BY(mutex_);  // empty until Connect has succeeded
  std::string identity_ ABSL_GUARDED_BY(mutex_);  // the teacher's identity in the cache
  bool uses_cache_ ABSL_GUARDED_BY(mutex_) = false;
  TeacherClientStats stats_ ABSL_GUARDED_BY(mutex_);  // requests and failures
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;      // requests without an answer
  int64_t num_asking_ ABSL_GUARDED_BY(mutex_) = 0;    // threads that use teacher_
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;  // no more requests to the teacher
  // Null if no teacher is asked. The destructor resets it, so lookups read has_teacher_ instead.
  std::unique_ptr<TeacherClient> teacher_;
  WorkerPool disk_{/*max_threads=*/2};
};

}  // namespace taopd
