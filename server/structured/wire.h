// The messages between the server and taopd-grammar, over a pair of connected sockets. A frame is
// its size, in 4 bytes, and its content; numbers are in the machine's byte order. Grammars and
// texts have ids of 8 bytes, which the server never uses twice.
//
//   the server sends                                    taopd-grammar answers
//   kVocabulary (limits, eos ids, bytes of each id)     kReady (code, message)
//   kCompile (grammar, kind, any_whitespace, text)      kCompiled (grammar, code, bytes, message)
//   kForget (grammar)                                   -
//   kOpen (grammar, text, stop ids, ids so far)         kMask after these ids
//   kAdvance (grammar, text, position, ids before it)   kMask at the position
//   kClose (grammar, text)                              -
//
// kMask is (text, position, state, bits or message). The server waits for at most one compilation,
// and for at most one mask of each text.
//
// When a grammar exceeds its time or crashes the process, the process writes a CrashReport into a
// pipe before it ends, so that the server knows which grammar it was.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

// taopd-grammar is started with this argument; the first descriptor is its end of the socket, the
// second one its end of the pipe for the crash report.
inline constexpr char kGrammarServeFlag[] = "--serve";
inline constexpr int kGrammarSocketFd = 3;
inline constexpr int kGrammarCrashReportFd = 4;

enum class GrammarOp : uint8_t {
  kVocabulary = 1,
  kReady,
  kCompile,
  kCompiled,
  kForget,
  kOpen,
  kAdvance,
  kClose,
  kMask,
};

// The content of a kMask.
enum class MaskState : uint8_t {
  kRestricts,   // bits, 64 per word
  kAllAllowed,  // nothing: the text has ended
  kFailed,      // a message
};

// The reason for which the process ends, and its work: it was compiling a grammar, or matching a
// text against it.
struct CrashReport {
  enum Reason : uint64_t { kTimedOut = 1, kCrashed };
  uint64_t reason = 0;
  uint64_t grammar = 0;
  uint64_t text = 0;  // 0 = it was compiling
};

class FrameWriter {
 public:
  explicit FrameWriter(GrammarOp op) { Add(op); }

  template <typename Number>
  FrameWriter& Add(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  // Adds a text without its size, which must be the last part of the frame.
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

// Reads what a FrameWriter wrote. If parts are missing at the end, ok() is false: a missing number
// reads as 0, and a text or a list ends where the frame does.
class FrameReader {
 public:
  explicit FrameReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Read() {
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
  std::string_view ReadBytes(size_t size) {
    if (bytes_.size() < size) ok_ = false;
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view ReadText() { return ReadBytes(Read<uint32_t>()); }
  std::vector<int32_t> ReadIds() {
    const std::string_view bytes = ReadBytes(sizeof(int32_t) * size_t{Read<uint32_t>()});
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), sizeof(int32_t) * ids.size());
    return ids;
  }
  std::string_view ReadRest() { return ReadBytes(bytes_.size()); }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// Returns the frame with its size in front.
inline std::string Framed(const std::string& frame) {
  const auto size = static_cast<uint32_t>(frame.size());
  std::string out;
  out.reserve(sizeof(size) + frame.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof(size));
  return out.append(frame);
}

// Cuts a stream of bytes into frames.
class FrameBuffer {
 public:
  void Append(std::string_view bytes) { bytes_.append(bytes); }
  // Returns the next frame if it is complete. A frame larger than max_bytes makes ok() false for
  // good.
  std::optional<std::string> Next(size_t max_bytes) {
    const std::string_view rest = std::string_view(bytes_).substr(begin_);
    uint32_t size = 0;
    if (rest.size() >= sizeof(size)) std::memcpy(&size, rest.data(), sizeof(size));
    ok_ = ok_ && size <= max_bytes;
    if (!ok_ || rest.size() < sizeof(size) + size) {
      bytes_.erase(0, begin_);
      begin_ = 0;
      return std::nullopt;
    }
    begin_ += sizeof(size) + size;
    return std::string(rest.substr(sizeof(size), size));
  }
  bool ok() const { return ok_; }

 private:
  std::string bytes_;
  size_t begin_ = 0;  // offset of the first byte that has not been taken
  bool ok_ = true;
};

}  // namespace taopd
