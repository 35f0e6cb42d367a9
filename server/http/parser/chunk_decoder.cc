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

bool ChunkDecoder::Refuse(int status, const std::string& message) {
  refusal_ = Refusal{status, message};
  return false;
}

bool ChunkDecoder::ReadSizeDigit(char c, size_t num_decoded) {
  const size_t digit =
      std::string_view("0123456789abcdef").find(absl::ascii_tolower(static_cast<unsigned char>(c)));
  if (digit != std::string_view::npos) {
    // The limit of the digits keeps the shift below from overflowing.
    if (++num_digits_ > kMaxSizeDigits) return Refuse(400, "a chunk size has too many digits");
    size_left_ = (size_left_ << 4) | digit;
    if (size_left_ > limits_.max_body_bytes - num_decoded)
      return Refuse(413, Concat("the body has more than ", limits_.max_body_bytes, " bytes"));
    return true;
  }
  if (num_digits_ == 0 || (c != ';' && c != '\r'))
    return Refuse(400, "a chunk size must be hexadecimal digits alone");
  step_ = c == ';' ? Step::kExtension : Step::kSizeLf;
  extension_bytes_ = 0;
  return true;
}

bool ChunkDecoder::ReadExtension(char c) {
  if (c == '\r') {
    step_ = Step::kSizeLf;
    return true;
  }
  if (++extension_bytes_ > limits_.max_chunk_extension_bytes) {
    return Refuse(400, Concat("a chunk extension has more than ", limits_.max_chunk_extension_bytes,
                              " bytes"));
  }
  if (!absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\t')
    return Refuse(400, "a chunk extension holds a control character");
  return true;
}

bool ChunkDecoder::ReadFraming(char c, size_t num_decoded) {
  if (++framing_bytes_ > kFreeFramingBytes + kFramingPerByte * num_decoded) {
    return Refuse(400,
                  "the chunk sizes and extensions of the body take much more bytes than its data");
  }
  const auto expect = [&](char expected, Step next, const char* message) {
    step_ = next;
    return c == expected || Refuse(400, message);
  };
  switch (step_) {
    case Step::kSize:
      return ReadSizeDigit(c, num_decoded);
    case Step::kExtension:
      return ReadExtension(c);
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
    if (!ReadFraming(bytes->front(), body->size())) return State::kRefused;
    bytes->remove_prefix(1);
  }
  return step_ == Step::kDone ? State::kDone : State::kMore;
}

}  // namespace taopd
