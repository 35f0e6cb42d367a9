// A teacher in this process: a client that asks an inference engine instead of a server. The engine
// computes the scores that taopd-teacher would send for the same weights, with the same bits.
//
// Threads: the rules of TeacherClient apply; `done` runs on the engine's thread, or on the calling
// thread if the request is refused.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <functional>
#include <memory>

#include "common/engine/engine.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

class EngineTeacherClient final : public TeacherClient {
 public:
  struct Started {
    std::unique_ptr<InferenceEngine> engine;
    TeacherInfo info;
  };
  // Connect calls `start` until it has succeeded once, and keeps the engine. Everything that the
  // engine reads must outlive the client.
  explicit EngineTeacherClient(std::function<absl::StatusOr<Started>()> start);
  ~EngineTeacherClient() override;

  // Ignores the timeout. Returns the errors of `start`.
  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override;
  // Besides the errors of TeacherClient, `done` receives those of the engine.
  void Score(TeacherRequest request, Done done) override;
  TeacherClientStats stats() const override;

 private:
  const std::function<absl::StatusOr<Started>()> start_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Started> started_ ABSL_GUARDED_BY(mutex_);  // null before Connect
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TeacherClientStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
