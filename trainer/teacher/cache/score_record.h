// The bytes of one entry of the score cache: a teacher's scores of a sequence, exact to the bit.
//
// Layout, little-endian, padded to 8 bytes: a header with the key and the sizes; log_probs; ids,
// packed to as many bits as the largest needs; log_tail, unless all of it is NaN; the sampled
// log-probs; candidates, entropy and dense log-probs where there are some; a checksum of all
// before. The sampled token is mostly one of the ids, and then a byte that names its column stands
// for its log-prob. At k = 16 and a vocabulary of 152k a row takes at most 109 bytes.
//
// The checksum finds every change within one 8-byte word, and others but for one in 2^64.
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

// The name of a request's scores: a hash of the teacher's revision and of all that decides the
// reply. The request_id and the source do not. 64 hexadecimal digits.
std::string ScoreKey(const TeacherRequest& request, const std::string& revision);

// Appends the entry of `scores`, which answer the request of `key`. The revision and the weight are
// not stored. REQUIRES: the arrays have the sizes that TeacherScores names.
void AppendScoreRecord(const std::string& key, const TeacherScores& scores, std::string* bytes);

// Returns DATA_LOSS if the bytes are no whole entry of `key`, or not of `request`'s shape.
absl::StatusOr<TeacherScores> ParseScoreRecord(std::span<const std::byte> bytes,
                                               const std::string& key,
                                               const TeacherRequest& request);

}  // namespace taopd
