// Limits of a request's fields, and what its numbers mean, for every protocol that generates.
// Errors are INVALID_ARGUMENT and name the field (field_error.h). Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

inline constexpr int64_t kMaxChoices = 16384;      // per prompt; vLLM's VLLM_MAX_N_SEQUENCES
inline constexpr size_t kMaxCacheSaltBytes = 128;  // vLLM's

// `name` is the protocol's: "request_id" or "rid".
absl::Status CheckRequestId(std::string_view name, std::string_view id);
absl::Status CheckNumChoices(int64_t n);
absl::Status CheckCacheSalt(std::string_view salt);

// The seed of a protocol whose field has a sign: as in vLLM, -1 is none, and every other number is
// the seed of its 64 bits.
std::optional<uint64_t> SignedSeed(std::optional<int64_t> seed);

}  // namespace taopd
