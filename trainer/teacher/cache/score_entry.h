// The format of one entry of the score cache: a teacher's scores of a sequence, exact to the bit.
//
// The layout is little-endian and padded to 8 bytes: a header with the key and the sizes;
// log_probs; ids, packed with the bits that the largest needs; log_tail, unless all of it is NaN;
// the sampled log-probs; candidates, entropy and dense log-probs, if there are any; a checksum of
// everything before. The sampled token is usually one of the ids; then a byte with its column
// replaces its log-prob. At k = 16 and a vocabulary of 152k a row takes at most 109 bytes.
//
// The checksum detects every change within one 8-byte word, and misses one in 2^64 of the others.
//
// Pure functions; any thread may call them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Returns the key of a request's scores, 64 hexadecimal digits: a hash of the teacher's identity
// (TeacherInfo::Identity) and of everything that determines the reply, which excludes request_id
// and source.
std::string ScoreKey(const TeacherRequest& request, const std::string& identity);

// Returns the entry of `scores`, the answer to the request of `key`. The revision and the weight
// are not stored. REQUIRES: the arrays have the sizes stated at TeacherScores.
std::string MakeScoreEntry(const std::string& key, const TeacherScores& scores);

// Returns DATA_LOSS if the bytes are not a complete entry of `key` with the shape of `request`.
absl::StatusOr<TeacherScores> ParseScoreEntry(std::span<const std::byte> bytes,
                                              const std::string& key,
                                              const TeacherRequest& request);

}  // namespace taopd
