// An HTTP/2 client that sends exactly the frames that it is told, and keeps within the windows of
// flow control when it sends a message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "server/grpc/guard/http2_frames.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {

inline constexpr char kHttp2Preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr char kScorePath[] = "/taopd.v1.Teacher/Score";

// A header block without compression: RFC 7541, section 6.2.2, and entries of the static table.
inline std::string GrpcHeaders(const std::string& path = kScorePath, const std::string& key = "") {
  const auto text = [](const std::string& value) {
    return static_cast<char>(value.size()) + value;
  };
  std::string block = "\x83\x86\x04" + text(path) + "\x01" + text("teacher") + "\x0f\x10" +
                      text("application/grpc") + std::string(1, '\0') + text("te") +
                      text("trailers");
  if (!key.empty()) block += std::string(1, '\0') + text("authorization") + text("Bearer " + key);
  return block;
}

// Returns the five bytes before a message of this size.
inline std::string MessagePrefix(uint32_t size) {
  std::string prefix(1, '\0');
  for (const int shift : {24, 16, 8, 0}) prefix.push_back(static_cast<char>(size >> shift & 0xff));
  return prefix;
}

class RawHttp2 {
 public:
  struct Received {
    Frame frame;
    std::string payload;
  };

  explicit RawHttp2(int port) : client_(port) {
    Send(kHttp2Preface + MakeFrame(FrameType::kSettings, 0, 0));
  }

  // False when the server has closed.
  bool Send(std::string_view bytes) { return client_.Send(bytes); }
  bool Open(uint32_t stream, const std::string& block = GrpcHeaders()) {
    return Send(MakeFrame(FrameType::kHeaders, kEndHeadersFlag, stream, block));
  }
  // Announces a message and sends this many bytes of it. Returns false if the call or the
  // connection ends first.
  bool SendPartOfMessage(uint32_t stream, uint32_t announced, size_t size) {
    std::string bytes = MessagePrefix(announced) + std::string(size, 'x');
    for (std::string_view left = bytes; !left.empty();) {
      const int64_t room = std::min({WindowOf(0), WindowOf(stream), int64_t{16} << 10});
      if (room <= 0) {
        Received received;
        if (!Read(&received) || EndsStream(received, stream)) return false;
        continue;
      }
      const std::string_view part = left.substr(0, static_cast<size_t>(room));
      if (!Send(MakeFrame(FrameType::kData, 0, stream, part))) return false;
      windows_[0] -= static_cast<int64_t>(part.size());
      windows_[stream] -= static_cast<int64_t>(part.size());
      left.remove_prefix(part.size());
    }
    return true;
  }
  // The next frame; false at the end of the connection.
  bool Read(Received* received) {
    std::string bytes = ReadBytes(9);
    if (bytes.size() < 9) return false;
    Http2FrameReader reader;
    reader.Read(bytes);
    received->frame = reader.frame();
    received->payload = ReadBytes(reader.frame().length);
    const auto& [frame, payload] = *received;
    if (frame.type == FrameType::kWindowUpdate) {
      windows_.try_emplace(frame.stream, 65535).first->second +=
          BigEndian32(reinterpret_cast<const uint8_t*>(payload.data()));
    }
    return payload.size() == frame.length;
  }
  // The header block with which the server ends the stream; empty if it ends without one.
  std::string ReadTrailers(uint32_t stream) {
    for (Received received; Read(&received);) {
      if (EndsStream(received, stream)) return received.payload;
    }
    return "";
  }
  // The error code of the server's GOAWAY, or -1 if it closes without one.
  int64_t ReadGoAway() {
    int64_t code = -1;
    for (Received received; Read(&received);) {
      if (received.frame.type != FrameType::kGoAway || received.payload.size() < 8) continue;
      code = BigEndian32(reinterpret_cast<const uint8_t*>(received.payload.data()) + 4);
    }
    return code;
  }

 private:
  static bool EndsStream(const Received& received, uint32_t stream) {
    const Frame& frame = received.frame;
    return frame.stream == stream &&
           (frame.type == FrameType::kResetStream ||
            (frame.type == FrameType::kHeaders && frame.has(kEndStreamFlag)));
  }
  int64_t WindowOf(uint32_t stream) { return windows_.try_emplace(stream, 65535).first->second; }
  std::string ReadBytes(size_t size) {
    std::string bytes(size, '\0');
    size_t have = 0;
    while (have < size) {
      const ssize_t got = ::recv(client_.fd(), bytes.data() + have, size - have, 0);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }

  RawClient client_;
  std::map<uint32_t, int64_t> windows_;  // that are left; 0: of the connection
};

}  // namespace taopd::testing
