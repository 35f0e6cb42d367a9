// Nothing a teacher sends is trained on before it passed these checks: a truncated, shuffled or
// foreign reply must become an error, not a gradient. Pure functions, any thread.
#pragma once

#include "common/base/status.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Slack for fp32 rounding in comparisons of log-probs (a logit of 1000 has a spacing of 6e-5) and
// in sums of probabilities. Far below what a wrong row shows.
inline constexpr float kLogProbSlack = 1e-3f;
inline constexpr double kMassSlack = 1e-3;

// Bytes of the arrays of a reply with `num_rows` rows to a request that asks for what `request`
// does (its tokens do not matter).
int64_t ScoreReplyBytes(const TeacherRequest& request, int64_t num_rows, const TeacherInfo& info);

// INVALID_ARGUMENT when the request exceeds a limit of the teacher, or is malformed.
absl::Status VerifyTeacherRequest(const TeacherRequest& request, const TeacherInfo& info);

// DATA_LOSS naming the field, the row and the value, unless all of these hold:
//   top_k, revision and the array sizes are what was asked for;
//   ids are in [0, head_vocab_size) and distinct within a row;
//   log-probs are no NaN, at most 0, and fall along a row;
//   each row's ids and tail together have the mass 1;
//   the sampled token's log-prob equals its entry in the row, or fits into the tail;
//   candidates agree with the row's ids, and have with these and their tail the mass 1;
//   dense log-probs agree with the row's ids and have the mass 1; entropies fit the vocabulary.
absl::Status VerifyTeacherScores(const TeacherScores& scores, const TeacherRequest& request,
                                 const TeacherInfo& info);

}  // namespace taopd
