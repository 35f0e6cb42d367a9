// Decodes a body in HTTP/1.1's chunked transfer coding, strictly: sizes consist only of hexadecimal
// digits, lines end with CRLF, extensions are short, and there are no trailers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/parser/request_head.h"

namespace taopd {

// Appends to a body so that its capacity at most doubles and never exceeds `max_bytes`.
// REQUIRES: body->size() + bytes.size() <= max_bytes.
void AppendToBody(std::string_view bytes, size_t max_bytes, std::string* body);

class ChunkDecoder {
 public:
  enum class State { kMore, kDone, kRefused };

  explicit ChunkDecoder(const RequestLimits& limits) : limits_(limits) {}

  // Decodes from the front of `bytes`, which may end anywhere, and removes the bytes that it has
  // read. Stops at the end of the body, where the next request begins.
  State Decode(std::string_view* bytes, std::string* body);

  // REQUIRES: Decode has returned kRefused.
  const Refusal& refusal() const { return *refusal_; }

 private:
  enum class Step { kSize, kExtension, kSizeLf, kData, kDataCr, kDataLf, kEndCr, kEndLf, kDone };

  // Returns false.
  bool Refuse(int status, const std::string& message);
  // Reads one byte of anything but data. Returns false if it is refused.
  bool ReadFraming(char c, size_t num_decoded);
  bool ReadSizeDigit(char c, size_t num_decoded);
  bool ReadExtension(char c);

  const RequestLimits limits_;
  Step step_ = Step::kSize;
  uint64_t size_left_ = 0;  // bytes left of the current chunk
  int num_digits_ = 0;
  size_t extension_bytes_ = 0;
  size_t framing_bytes_ = 0;
  std::optional<Refusal> refusal_;
};

}  // namespace taopd
