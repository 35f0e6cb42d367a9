// Checks the HTTP/2 frames of one connection before the gRPC library sees them. gRPC 1.51 collects
// a header block of any size without freeing the thread that reads it, collects a message of any
// size before it compares it with the limit, and counts neither against a budget. The guard reads
// the frames' headers and the length that precedes each message, but no names and values:
//
// - A header block, a frame, or a number of open streams over its limit ends the connection. So do
//   too many resets of streams, and too many answers to PING and SETTINGS that the client does not
//   read.
// - The received bytes of a stream's message, and each stream itself, are charged to the
//   connection's account until the next message of the stream begins or the stream ends. A call
//   that does not fit, that announces too large a message, or that does not continue its message is
//   refused by itself: the server sees a reset of the stream by the client, and the client gets a
//   status.
//
// Memory per connection: a hundred bytes for each open stream. Not thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/grpc/guard/client_limits.h"
#include "server/grpc/guard/http2_frames.h"

namespace taopd {

class FrameGuard {
 public:
  // The window of a new stream, which the server must announce and keep.
  static constexpr int kInitialWindowBytes = 65535;
  static constexpr int64_t kMaxHeaderBlockBytes = 64 << 10;
  static constexpr int kMaxHeaderFrames = 64;  // frames of one block
  // The server must not announce another limit.
  static constexpr size_t kMaxFrameBytes = 16 << 10;
  // gRPC's memory for a call besides its message: 12 KiB, and headers of up to 8 KiB.
  static constexpr int64_t kStreamBytes = 20 << 10;
  static constexpr int kMaxUnreadAnswers = 1000;  // answers to PING and SETTINGS
  // The time limit of the preface, a frame and a header block, each from its first byte.
  static constexpr absl::Duration kFrameTimeout = absl::Seconds(10);
  // The time limit of a message, plus one second for every kMinBytesPerSecond bytes received. The
  // time in which the server holds the client back does not count.
  static constexpr absl::Duration kMessageTimeout = absl::Seconds(30);
  static constexpr int64_t kMinBytesPerSecond = 16 << 10;

  struct Limits {
    int max_streams = 1024;  // open at once
    int64_t max_message_bytes = 0;
  };
  // Called for each refused call, and if the guard ends the connection.
  using OnRefusal = std::function<void(const absl::Status& why)>;

  // `resets` is shared by the connections of a client and must outlive the guard.
  FrameGuard(const Limits& limits, MemoryAccount memory, ResetRate* resets, OnRefusal on_refusal,
             absl::Time now)
      : limits_(limits),
        memory_(std::move(memory)),
        resets_(resets),
        on_refusal_(std::move(on_refusal)),
        begun_at_(now) {}

  // Append the bytes for the server to `to_server`, and those for the client to `to_client`. An
  // error ends the connection: the guard must not be called again.
  absl::Status FromClient(std::string_view bytes, absl::Time now, std::string* to_server);
  absl::Status FromServer(std::string_view bytes, absl::Time now, std::string* to_client);
  // Refuses calls and ends the connection if they have taken too long. Call it about every second.
  absl::Status CheckDeadlines(absl::Time now, std::string* to_server);

  // Returns whether the client's whole preface has arrived.
  bool has_preface() const { return num_preface_bytes_ == kClientPreface.size(); }
  // Returns the frame that tells the client why the connection ends, or nothing in the middle of
  // another frame.
  std::string GoAway(const absl::Status& why) const;

 private:
  struct Stream {
    int64_t window_bytes = kInitialWindowBytes;  // bytes that the client may still send
    std::array<uint8_t, 5> prefix{};             // prefix of the current message
    size_t num_prefix_bytes = 0;
    int64_t num_bytes_left = 0;  // bytes of the message to come, once the prefix is complete
    int64_t num_bytes_held = 0;  // bytes of the message that have arrived
    int64_t num_bytes_charged = 0;
    bool has_answer_headers = false;
    // Start of the message, or the last time at which the client was allowed to continue it.
    absl::Time begun_at;
    int64_t num_bytes_since_begun = 0;  // bytes of the message that have arrived since begun_at

    bool is_unfinished() const {
      return num_prefix_bytes > 0 && (num_prefix_bytes < prefix.size() || num_bytes_left > 0);
    }
  };
  // Settings that the server has not acknowledged: the client's, or those that the guard has sent
  // for a refused call. Their acknowledgement comes after the server's last frame on the call.
  struct PendingSettings {
    uint32_t stream = 0;  // 0 if they are the client's
    bool has_answer_headers = false;
    absl::Status status;
  };
  using Streams = std::unordered_map<uint32_t, Stream>;

  absl::Status ReadPreface(std::string_view* bytes, std::string* to_server);
  absl::Status BeginFrame(absl::Time now);
  absl::Status BeginHeaders(const Frame& frame, absl::Time now);
  absl::Status CountReset(absl::Time now);
  absl::Status CountData(std::string_view data, absl::Time now);
  absl::Status Charge(Streams::iterator stream, absl::Time now);
  absl::Status Refuse(Streams::iterator stream, absl::Status why, absl::Time now);
  void Forget(Streams::iterator stream);
  void AppendOwnFrames(std::string* to_server);
  // Returns false if the frame is not for the client.
  bool BeginAnswer();
  absl::Status EndAnswer(absl::Time now);
  void EndByServer(uint32_t stream);

  const Limits limits_;
  MemoryAccount memory_;
  ResetRate* const resets_;
  const OnRefusal on_refusal_;
  absl::Time begun_at_;  // start of the current frame or of the preface
  Streams streams_;

  Http2FrameReader client_;
  size_t num_preface_bytes_ = 0;
  uint32_t last_stream_ = 0;
  uint32_t header_stream_ = 0;  // stream of the open header block; 0 if there is none
  int64_t num_header_bytes_ = 0;
  int num_header_frames_ = 0;
  absl::Time header_begun_at_;
  std::string for_server_;  // frames of the guard, to be sent between two other frames

  Http2FrameReader server_;
  bool is_answer_header_open_ = false;
  std::string payload_start_;                            // up to four bytes of the answer
  std::deque<PendingSettings> unacknowledged_settings_;  // in the order of sending
  int num_unread_pings_ = 0;
  std::string for_client_;
};

}  // namespace taopd
