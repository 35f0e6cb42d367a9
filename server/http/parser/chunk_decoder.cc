#include "server/http/parser/chunk_decoder.h"

#include <absl/strings/ascii.h>

#include <algorithm>

#include "common/base/status.h"

namespace taopd {
namespace {

constexpr size_t kFirstCapacity = 4096;
constexpr int kMaxSizeDigits = 16;
// Framing may take kFreeFramingBytes plus kFramingPerByte times the data; a chunk of one byte has
// five bytes of framing.
constexpr size_t kFreeFramingBytes = 64 << 10;
constexpr size_t kFramingPerByte = 8;

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void AppendToBody(std::string_view bytes, size_t max_bytes, std::string* body) {
  const size_t needed = body->size() + bytes.size();
  if (needed > body->capacity()) {
    // Use a new string, because std::string's own growth at least doubles the capacity.
    std::string grown;
    grown.reserve(std::min(max_bytes, std::max({needed, 2 * body->capacity(), kFirstCapacity})));
    grown.append(*body);
    body->swap(grown);
  }
  body->append(bytes);
}

ChunkDecoder::State ChunkDecoder::Refuse(int status, const std::string& message) {
  refusal_ = Refusal{status, message};
  return State::kRefused;
}

bool ChunkDecoder::TakeSizeDigit(char c, size_t num_decoded) {
  const int digit = HexValue(c);
  if (digit >= 0) {
    // The limit of the digits keeps the shift below from overflowing.
    if (++num_digits_ > kMaxSizeDigits) {
      Refuse(400, "a chunk size has too many digits");
      return false;
    }
    size_left_ = (size_left_ << 4) | static_cast<uint64_t>(digit);
    if (size_left_ > limits_.max_body_bytes - num_decoded) {
      Refuse(413, Concat("the body has more than ", limits_.max_body_bytes, " bytes"));
      return false;
    }
    return true;
  }
  if (num_digits_ == 0 || (c != ';' && c != '\r')) {
    Refuse(400, "a chunk size must be hexadecimal digits alone");
    return false;
  }
  step_ = c == ';' ? Step::kExtension : Step::kSizeLf;
  extension_bytes_ = 0;
  return true;
}

bool ChunkDecoder::TakeExtension(char c) {
  if (c == '\r') {
    step_ = Step::kSizeLf;
    return true;
  }
  if (++extension_bytes_ > limits_.max_chunk_extension_bytes) {
    Refuse(400,
           Concat("a chunk extension has more than ", limits_.max_chunk_extension_bytes, " bytes"));
    return false;
  }
  if (!absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\t') {
    Refuse(400, "a chunk extension holds a control character");
    return false;
  }
  return true;
}

bool ChunkDecoder::TakeFraming(char c, size_t num_decoded) {
  if (++framing_bytes_ > kFreeFramingBytes + kFramingPerByte * num_decoded) {
    Refuse(400, "the body consists of chunk sizes and extensions, more than of data");
    return false;
  }
  const auto expect = [&](char expected, Step next, const char* message) {
    if (c != expected) Refuse(400, message);
    step_ = next;
    return c == expected;
  };
  switch (step_) {
    case Step::kSize:
      return TakeSizeDigit(c, num_decoded);
    case Step::kExtension:
      return TakeExtension(c);
    case Step::kSizeLf:
      return expect('\n', size_left_ == 0 ? Step::kEndCr : Step::kData,
                    "a chunk size must end with CRLF");
    case Step::kDataCr:
      return expect('\r', Step::kDataLf, "a chunk is longer than its size");
    case Step::kDataLf:
      num_digits_ = 0;
      return expect('\n', Step::kSize, "a chunk must end with CRLF");
    case Step::kEndCr:
      return expect('\r', Step::kEndLf, "trailers are not supported");
    default:
      return expect('\n', Step::kDone, "the last chunk must end with CRLF");
  }
}

ChunkDecoder::State ChunkDecoder::Decode(std::string_view* bytes, std::string* body) {
  while (!bytes->empty() && step_ != Step::kDone) {
    if (step_ == Step::kData) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(size_left_, bytes->size()));
      AppendToBody(bytes->substr(0, count), limits_.max_body_bytes, body);
      bytes->remove_prefix(count);
      size_left_ -= count;
      if (size_left_ == 0) step_ = Step::kDataCr;
      continue;
    }
    if (!TakeFraming(bytes->front(), body->size())) return State::kRefused;
    bytes->remove_prefix(1);
  }
  return step_ == Step::kDone ? State::kDone : State::kMore;
}

}  // namespace taopd
