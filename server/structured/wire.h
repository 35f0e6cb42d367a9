// Messages between the server and the processes of taopd-grammar, over a pair of connected sockets
// on one machine. A frame is its size in 4 bytes and then so many bytes; numbers are in the
// machine's byte order.
//
// The server starts one taopd-grammar, gives it the vocabulary in the first frame of their socket,
// and then sends a byte with a descriptor for each grammar: the end of a socket of its own. The
// program forks for each, and the copy serves that socket until the server closes it. It says kHello,
// and then answers
// - kCompile (kind, any_whitespace, eos ids, text) with kCompiled (code, message);
// - kOpen (sequence, stop ids) with kMask of position 0;
// - kAdvance (sequence, position, ids) with kMask of the position, before which the ids are new;
// - kClose (sequence) with nothing.
//
// A copy that runs out of its time says kTimedOut, and one that runs out of memory kOutOfMemory;
// both then end. So does one that crashes, and its socket with it.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

enum class GrammarOp : uint8_t {
  kVocabulary = 1,
  kHello,
  kCompile,
  kOpen,
  kAdvance,
  kClose,
  kCompiled,
  kMask,
  kTimedOut,
  kOutOfMemory,
};

// What kMask says of the ids.
enum class MaskState : uint8_t {
  kRestricts,   // the bits follow, 64 in a word
  kAllAllowed,  // the grammar has ended
  kFailed,      // a message follows
};

class FrameWriter {
 public:
  explicit FrameWriter(GrammarOp op) { Add(op); }

  template <typename Number>
  FrameWriter& Add(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  // A text up to the end of the frame.
  FrameWriter& AddRest(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  FrameWriter& AddText(std::string_view text) {
    Add(static_cast<uint32_t>(text.size()));
    return AddRest(text);
  }
  FrameWriter& AddIds(std::span<const int32_t> ids) {
    Add(static_cast<uint32_t>(ids.size()));
    bytes_.append(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what a FrameWriter wrote. What is missing at the end reads as 0 or as empty, and makes ok()
// false.
class FrameReader {
 public:
  explicit FrameReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Take() {
    Number value{};
    if (bytes_.size() < sizeof(value)) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  std::string_view TakeBytes(size_t size) {
    if (bytes_.size() < size) ok_ = false;
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view TakeText() { return TakeBytes(Take<uint32_t>()); }
  std::string_view TakeRest() { return TakeBytes(bytes_.size()); }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// Blocks while the other side does not read. UNAVAILABLE: it is gone.
absl::Status SendFrame(int fd, const std::string& frame);
// False, and nothing is sent, if all of the frame does not fit into the socket's buffer at once or
// the other side is gone. REQUIRES: the frame is shorter than the buffer.
bool TrySendFrame(int fd, const std::string& frame);
// Waits until the socket can be read (true) or written (false).
absl::StatusOr<bool> AwaitReadableOrWritable(int fd, absl::Time deadline);
// Waits for a frame until the deadline. nullopt: the other side has closed its end. DEADLINE_EXCEEDED
// in the middle of a frame leaves the rest unread: close the socket.
absl::StatusOr<std::optional<std::string>> ReceiveFrame(int fd, absl::Time deadline);

// Sends one byte with a copy of the descriptor.
absl::Status SendDescriptor(int fd, int descriptor);
// The next one; -1 when the other side has closed its end.
absl::StatusOr<int> ReceiveDescriptor(int fd);

}  // namespace taopd
