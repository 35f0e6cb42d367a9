// The teacher of a run that has none (teacher.kind none): every score is NaN, and no token is among
// its most probable ones. The loss of such a run reads no teacher.
//
// Threads: any thread may call it; `done` runs on the thread that calls Score.
#pragma once

#include <cmath>
#include <limits>
#include <utility>

#include "trainer/teacher/teacher_client.h"

namespace taopd {

class NoTeacherClient final : public TeacherClient {
 public:
  absl::StatusOr<TeacherInfo> Connect(absl::Duration) override {
    TeacherInfo info;
    info.model_name = info.revision = "none";
    info.max_model_len = std::numeric_limits<int64_t>::max();
    info.supports_temperature = true;
    return info;
  }
  // Answers INVALID_ARGUMENT to a request that asks for more than the response token's log-prob.
  void Score(TeacherRequest request, Done done) override {
    if (request.top_k > 0 || request.num_candidates > 0 || request.dense || request.entropy)
      return done(InvalidArgument("teacher.kind = none: there is no teacher to ask"));
    TeacherScores scores;
    scores.log_tail.assign(static_cast<size_t>(request.num_rows()), std::nanf(""));
    scores.sampled_log_probs = scores.log_tail;
    done(std::move(scores));
  }
  TeacherClientStats stats() const override { return {}; }
};

}  // namespace taopd
