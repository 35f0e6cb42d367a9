// The support of the loss: the tokens that are compared one by one at each response position. What
// the teacher is asked for because of it, and how its reply becomes the arrays that the fused head
// reads. No LibTorch here.
//
//   teacher          the teacher's k most probable tokens
//   student          the student's k most probable tokens, under the weights that generated: the
//                    rollout engine reports them with each token it samples (Rollout::top_ids), so
//                    they cost no further forward pass, go to the teacher as candidates the moment
//                    a rollout ends, and are those of the behavior policy
//   union            both, each token once
//   full vocabulary  every token; for objectives that need it, from the teacher's dense log-probs.
//                    The teacher's top-k come along for the metrics
//
// Shapes: R response positions, k support size, V the student's vocabulary.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/rollout/rollout_engine.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

enum class SupportKind { kTeacher, kStudent, kUnion, kFullVocabulary };

struct SupportOptions {
  SupportKind kind = SupportKind::kTeacher;
  int32_t teacher_top_k = 16;  // 0 for student
  int32_t student_top_k = 0;   // 0 for teacher and full vocabulary
  bool teacher_entropy = false;
  float temperature = 1.0f;  // the teacher's
  int64_t vocab_size = 0;    // the student's; every id of a support is below
};

// What the teacher is to say about a rollout's response.
// REQUIRES: rollout.top_ids has student_top_k ids for each response token.
TeacherRequest MakeTeacherRequest(const SupportOptions& options, const Rollout& rollout,
                                  std::string request_id);

// Turns the reply to that request into the support's scores: top_k = k, ids, log_probs and log_tail
// are those of the support; candidates are used up. A row that has fewer tokens is filled with id
// -1 and log-prob -inf at its end, which the head skips. For the full vocabulary, these are the
// teacher's top-k, and dense_log_probs [R, V] has what the teacher says of the student's ids. An id
// beyond the student's vocabulary (padding of the teacher's) leaves its row, its probability goes
// to the tail, and num_beyond_vocabulary counts it. DATA_LOSS when the reply's arrays do not fit
// the rollout, FAILED_PRECONDITION when a row has nothing but such ids.
absl::Status ReduceToSupport(const SupportOptions& options, const Rollout& rollout,
                             TeacherScores* scores);

}  // namespace taopd
