#include "server/grpc/guard/refusal_frames.h"

#include <string_view>

#include "common/wire/teacher_protocol.h"
#include "server/grpc/guard/http2_frames.h"
#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

// Error codes of RFC 9113, section 7.
constexpr uint32_t kNoError = 0x0, kProtocolError = 0x1, kCancel = 0x8, kEnhanceYourCalm = 0xb;
constexpr size_t kMaxStringBytes = 126;  // the length is one byte

std::string Bytes32(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

// RFC 7541, section 5.2, without Huffman coding.
std::string HeaderString(std::string_view text) {
  text = text.substr(0, kMaxStringBytes);
  return static_cast<char>(text.size()) + std::string(text);
}

// RFC 7541, section 6.2.2: a literal without indexing and with a new name.
std::string Literal(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + HeaderString(name) + HeaderString(value);
}

}  // namespace

std::string ResetFrame(uint32_t stream) {
  return MakeFrame(FrameType::kResetStream, 0, stream, Bytes32(kCancel));
}

std::string RefusalFrames(uint32_t stream, bool has_headers, const absl::Status& status) {
  if (status.ok()) return "";
  std::string block;
  if (!has_headers) {
    block.push_back('\x88');  // ":status: 200" is entry 8 of the static table
    block += "\x0f\x10" + HeaderString("application/grpc");  // content-type is entry 31
  }
  block += Literal("grpc-status", std::to_string(status.raw_code()));
  block += Literal("grpc-message", std::string(status.message()));
  if (absl::IsResourceExhausted(status)) {
    block += Literal(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
  }
  return MakeFrame(FrameType::kHeaders, kEndStreamFlag | kEndHeadersFlag, stream, block) +
         MakeFrame(FrameType::kResetStream, 0, stream, Bytes32(kNoError));
}

std::string GoAwayFrame(uint32_t last_stream, const absl::Status& why) {
  const uint32_t code = absl::IsInvalidArgument(why) ? kProtocolError : kEnhanceYourCalm;
  return MakeFrame(FrameType::kGoAway, 0, 0,
                   Bytes32(last_stream) + Bytes32(code) + std::string(why.message()));
}

}  // namespace taopd
