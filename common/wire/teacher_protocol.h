// The agreements between a teacher and its clients in addition to the messages of
// proto/taopd/v1/teacher.proto: numbers and formulas that a .proto file cannot express. Both
// programs include this header, which depends on neither gRPC nor protobuf. It has constants and a
// pure function: any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taopd {

// The value of GetTeacherInfoResponse.protocol_version. It rises when a message changes its
// meaning; a client refuses a version that it does not know.
inline constexpr uint32_t kTeacherProtocolVersion = 1;

// The largest message in either direction. The teacher refuses larger ones.
inline constexpr int64_t kMaxMessageBytes = int64_t{64} << 20;

// The longest request_id that the teacher accepts.
inline constexpr size_t kMaxRequestIdBytes = 1024;

// The trailing metadata of a refused request: the number of milliseconds that a client waits before
// it sends the request again. A negative number, or text that is not a number, means "never" (gRPC
// proposal A6).
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";
// The number that the teacher sends.
inline constexpr int kRetryPushbackMs = 500;

// A client pings a silent connection this often, to notice a teacher that hangs. The teacher closes
// the connections of clients that ping more often than its minimum.
inline constexpr int kPingIntervalMs = 30'000;
inline constexpr int kMinPingIntervalMs = 10'000;

// The contents of each row of a ScoreResponse besides its tail and the sampled token's log-prob,
// which are always present.
struct ScoreReplyFields {
  int64_t top_k = 0;
  int64_t num_candidates = 0;
  bool entropy = false;
  bool rank = false;
  bool support_stats = false;
  int64_t dense_vocab_size = 0;  // 0: no dense log-probs
};

// Returns the bytes on the wire of the arrays of a ScoreResponse with `num_rows` rows. The arrays
// are packed 32-bit words.
int64_t ScoreReplyArrayBytes(const ScoreReplyFields& fields, int64_t num_rows);

// The largest number of bytes of a ScoreResponse outside of its arrays: the request_id, the
// revision and the headers of the fields.
inline constexpr int64_t kScoreReplyOverheadBytes = 4096;

}  // namespace taopd
