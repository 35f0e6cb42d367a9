// The support of the loss: the tokens that are compared one by one at each response position. This
// file makes the request to the teacher for a support, and turns the teacher's reply into the
// numbers that the loss needs. It does not depend on LibTorch.
//
// There are four kinds of support:
//   teacher          The teacher's k most probable tokens.
//   student          The student's k most probable tokens under the weights that generated the
//                    response. The rollout engine reports them with each token that it samples
//                    (Rollout::top_ids), so they cost no further forward pass and are sent to the
//                    teacher as candidates as soon as the rollout ends.
//   union            Both of these, each token once.
//   full vocabulary  Every token, for objectives that need it. The teacher sends dense log-probs,
//                    and its k most probable tokens for the metrics.
//
// Shapes: R response positions, k support size, V the student's vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/step/scored_rollout.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

enum class SupportKind { kTeacher, kStudent, kUnion, kFullVocabulary };

struct SupportOptions {
  SupportKind kind = SupportKind::kTeacher;
  int32_t teacher_top_k = 16;  // 0 for kStudent, or without a teacher
  int32_t student_top_k = 0;   // 0 for kTeacher and kFullVocabulary
  bool teacher_entropy = false;
  // The teacher divides its logits by this before it scores. The student has a temperature of its
  // own (HeadOptions::temperature).
  float teacher_temperature = 1.0f;
  int64_t vocab_size = 0;  // V; every id of a support is below it
};

// Returns the support on which the configuration's objective compares.
SupportOptions MakeSupportOptions(const TrainConfig& config, int64_t vocab_size);

// Returns the request for the teacher's scores of a rollout's response, after the teacher's own
// prompt or, if that is empty, after the student's. REQUIRES: rollout.top_ids has student_top_k
// ids for each response token.
TeacherRequest MakeTeacherRequest(const SupportOptions& options, const Rollout& rollout,
                                  std::string request_id,
                                  const std::vector<int32_t>& teacher_prompt_ids = {});

// Reduces the teacher's reply to that request to the support. A token that the student's vocabulary
// lacks (the teacher's may be padded) leaves its row, and its probability is added to the tail. For
// the full vocabulary, `ids`, `log_probs` and `log_tail` of the result are those of the teacher's
// most probable tokens, and `dense_log_probs` is filled.
//
// Returns DATA_LOSS if the arrays of the reply do not fit the rollout, and FAILED_PRECONDITION if
// the student's vocabulary lacks all tokens that the teacher names at some position.
absl::StatusOr<SupportScores> ReduceToSupport(const SupportOptions& options, const Rollout& rollout,
                                              TeacherScores reply);

// Returns the rollout in the form that the student head takes without a teacher: the support is the
// response's token itself, with probability one.
ScoredRollout WithoutTeacher(Rollout rollout);

}  // namespace taopd
