// A teacher for tests of the trainer whose scores are a function of the test's.
#pragma once

#include <functional>
#include <utility>

#include "trainer/teacher/teacher_client.h"

namespace taopd::testing {

class ScriptedTeacher final : public TeacherClient {
 public:
  using Done = std::function<void(absl::StatusOr<TeacherScores>)>;
  // `score` answers each request, on the thread that asks. `info` is what Connect returns.
  explicit ScriptedTeacher(std::function<void(TeacherRequest, Done)> score, TeacherInfo info = {})
      : score_(std::move(score)), info_(std::move(info)) {}

  absl::StatusOr<TeacherInfo> Connect(absl::Duration) override { return info_; }
  void Score(TeacherRequest request, Done done) override {
    score_(std::move(request), std::move(done));
  }
  TeacherClientStats stats() const override { return {}; }

 private:
  const std::function<void(TeacherRequest, Done)> score_;
  const TeacherInfo info_;
};

}  // namespace taopd::testing
