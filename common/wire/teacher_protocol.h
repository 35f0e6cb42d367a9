// What a teacher and its clients have to agree on beside the messages of
// proto/taopd/v1/teacher.proto: numbers and formulas that a .proto file cannot hold. Both programs
// include this header, which knows neither gRPC nor protobuf. Constants and a pure function: any
// thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taopd {

// GetTeacherInfoResponse.protocol_version. It rises when a message changes its meaning; a client
// refuses a version that it does not know.
inline constexpr uint32_t kTeacherProtocolVersion = 1;

// Largest message in either direction. The teacher refuses larger ones.
inline constexpr int64_t kMaxMessageBytes = int64_t{64} << 20;

// Longest request_id that the teacher accepts.
inline constexpr size_t kMaxRequestIdBytes = 1024;

// Longest cache_salt that the teacher accepts over gRPC.
inline constexpr size_t kMaxSaltBytes = 1024;

// Trailing metadata of a refused request: how many milliseconds a client waits before it sends the
// request again. A negative number, or text that is no number, means "never" (gRPC proposal A6).
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";

// A client pings a silent connection this often, to notice a teacher that hangs. The teacher closes
// the connections of clients that ping more often than its minimum.
inline constexpr int kPingIntervalMs = 30'000;
inline constexpr int kMinPingIntervalMs = 10'000;

// What each row of a ScoreResponse holds beside its tail and the sampled token's log-prob, which
// are always there.
struct ScoreReplyFields {
  int64_t top_k = 0;
  int64_t num_candidates = 0;
  bool entropy = false;
  bool rank = false;
  bool support_stats = false;
  int64_t dense_vocab_size = 0;  // 0: no dense log-probs
};

// The bytes that the arrays of a ScoreResponse of `num_rows` rows take on the wire. The arrays are
// packed 32-bit words.
int64_t ScoreReplyArrayBytes(const ScoreReplyFields& fields, int64_t num_rows);

// At most so many bytes of a ScoreResponse are not in its arrays: the request_id, the revision and
// the headers of the fields.
inline constexpr int64_t kScoreReplyOverheadBytes = 4096;

}  // namespace taopd
