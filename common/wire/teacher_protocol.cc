#include "common/wire/teacher_protocol.h"

namespace taopd {
namespace {

constexpr int64_t kBytesPerWord = 4;

}  // namespace

int64_t ScoreReplyArrayBytes(const ScoreReplyFields& fields, int64_t num_rows) {
  int64_t words_per_row = 2;                          // log_tail, sampled_logprobs
  words_per_row += 2 * fields.top_k;                  // ids, logprobs
  words_per_row += fields.num_candidates;             // candidate_logprobs
  if (fields.num_candidates > 0) words_per_row += 1;  // candidate_log_tail
  if (fields.entropy) words_per_row += 1;             // entropy
  if (fields.rank) words_per_row += 1;                // sampled_ranks
  if (fields.support_stats) words_per_row += 2;       // log_support_mass, log_sum_exp
  words_per_row += fields.dense_vocab_size;           // dense_logprobs
  return num_rows * words_per_row * kBytesPerWord;
}

}  // namespace taopd
