// The checks that every reply of a teacher must pass before training uses it: a truncated, shuffled
// or foreign reply must become an error, not a gradient. Pure functions; any thread may call them.
#pragma once

#include "common/base/status.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Slack for fp32 rounding in comparisons of log-probs (neighboring fp32 numbers near 1000 are 6e-5
// apart) and in sums of probabilities. A wrong row is off by far more. The log-probs of rollouts
// from other servers have the same slack above zero (trainer/rollout).
inline constexpr float kLogProbSlack = 1e-3f;
inline constexpr double kMassSlack = 1e-3;

// Returns the bytes of the arrays in the reply to a request.
int64_t ScoreReplyBytes(const TeacherRequest& request, const TeacherInfo& info);

// Returns INVALID_ARGUMENT if the request is malformed or exceeds a limit of the teacher.
absl::Status VerifyTeacherRequest(const TeacherRequest& request, const TeacherInfo& info);

// Returns DATA_LOSS, naming the field, the row and the value, unless all of these hold:
// - top_k, the revision and the sizes of the arrays are as requested.
// - The ids are in [0, head_vocab_size), if that is known, and distinct within a row.
// - Log-probs are not NaN, are at most 0, and do not rise along a row.
// - The probabilities of a row's ids and its tail sum to 1. If the teacher sends no tail, log_tail
//   is NaN and the ids' probabilities sum to at most 1.
// - The sampled token's log-prob equals its entry in the row, or fits into the tail.
// - Candidates agree with the row's ids; the probabilities of both and of the candidates' tail sum
//   to 1.
// - Dense log-probs agree with the row's ids, and their probabilities sum to 1.
// - Entropies are between 0 and the logarithm of the vocabulary size.
absl::Status VerifyTeacherScores(const TeacherScores& scores, const TeacherRequest& request,
                                 const TeacherInfo& info);

}  // namespace taopd
