// Cuts a stream of bytes into the frames of HTTP/2 (RFC 9113, section 4.1), without keeping their
// payloads. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taopd {

// The first bytes of a client (RFC 9113, section 3.4). A SETTINGS frame follows them.
inline constexpr std::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kAckFlag = 0x1;         // for SETTINGS and PING
inline constexpr uint8_t kEndStreamFlag = 0x1;   // for DATA and HEADERS
inline constexpr uint8_t kEndHeadersFlag = 0x4;  // for HEADERS and CONTINUATION

struct Frame {
  size_t length = 0;  // length of the payload
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

inline uint32_t BigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// Returns the bytes of a frame. REQUIRES: the payload has less than 16 MiB.
inline std::string MakeFrame(FrameType type, uint8_t flags, uint32_t stream,
                             std::string_view payload = {}) {
  const auto length = static_cast<uint32_t>(payload.size());
  std::string bytes;
  for (const uint32_t part : {length >> 16, length >> 8, length, uint32_t(type), uint32_t(flags),
                              stream >> 24, stream >> 16, stream >> 8, stream}) {
    bytes.push_back(static_cast<char>(part & 0xff));
  }
  return bytes.append(payload);
}

class Http2FrameReader {
 public:
  // The meaning of the bytes that were read.
  struct Step {
    size_t num_bytes = 0;      // number of bytes that were read
    bool is_header = false;    // frame() is now known
    std::string_view payload;  // the next part of frame()'s payload
    bool is_end = false;       // the frame is complete
  };

  // Reads some of `bytes`, which must not be empty. Call it again with the rest.
  Step Read(std::string_view bytes) {
    Step step;
    if (num_header_bytes_ < header_.size()) {
      step.num_bytes = std::min(header_.size() - num_header_bytes_, bytes.size());
      std::copy_n(bytes.begin(), step.num_bytes, header_.begin() + num_header_bytes_);
      num_header_bytes_ += step.num_bytes;
      if (num_header_bytes_ < header_.size()) return step;
      step.is_header = true;
      Parse();
    } else {
      step.num_bytes = std::min(num_left_, bytes.size());
      step.payload = bytes.substr(0, step.num_bytes);
      num_left_ -= step.num_bytes;
    }
    step.is_end = num_left_ == 0;
    if (step.is_end) num_header_bytes_ = 0;
    return step;
  }

  const Frame& frame() const { return frame_; }
  // Returns the frame's header, unchanged.
  std::string_view header_bytes() const {
    return {reinterpret_cast<const char*>(header_.data()), header_.size()};
  }
  bool is_between_frames() const { return num_header_bytes_ == 0; }

 private:
  void Parse() {
    frame_.length = BigEndian32(header_.data()) >> 8;
    frame_.type = static_cast<FrameType>(header_[3]);
    frame_.flags = header_[4];
    frame_.stream = BigEndian32(header_.data() + 5) & 0x7fffffff;
    num_left_ = frame_.length;
  }

  std::array<uint8_t, 9> header_{};
  size_t num_header_bytes_ = 0;
  size_t num_left_ = 0;  // bytes left of the payload
  Frame frame_;
};

}  // namespace taopd
