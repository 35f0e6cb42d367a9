// Fuzz entry: a safetensors header. What parses obeys the format's rules.
#include "common/io/safetensors/safetensors_header.h"
#include "common/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kDataBytes = 64;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto header = taopd::ParseSafetensorsHeader(text, kDataBytes, "fuzz");
  if (!header.ok()) {
    TAOPD_CHECK(!header.status().message().empty());
    return 0;
  }
  int64_t num_bytes = 0;
  for (const auto& [name, entry] : header->entries) {
    TAOPD_CHECK(entry.begin >= 0 && entry.begin <= entry.end && entry.end <= kDataBytes);
    num_bytes += entry.end - entry.begin;
  }
  TAOPD_CHECK_EQ(num_bytes, kDataBytes);
  return 0;
}
