// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected; RFC 3720, appendix B.4).
#pragma once

#include <cstdint>
#include <string_view>

namespace taopd {

uint32_t Crc32c(std::string_view bytes);

// Returns the checksum in the form that TFRecord stores: rotated and offset, so that a checksum of
// data that contains such checksums stays meaningful (TensorFlow, lib/hash/crc32c.h).
inline uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace taopd
