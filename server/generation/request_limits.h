// The limits and meanings of fields that all protocols for generation share. Errors are
// INVALID_ARGUMENT and name the field (field_error.h). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

inline constexpr int64_t kMaxChoices = 16384;      // per prompt; vLLM's VLLM_MAX_N_SEQUENCES
inline constexpr size_t kMaxCacheSaltBytes = 128;  // vLLM's

// `name` is the protocol's name of the field: "request_id" or "rid".
absl::Status CheckRequestId(std::string_view name, std::string_view id);
// The protocols of vLLM and SGLang name the temperature: as in vLLM, greedy sampling has one choice
// per prompt. taopd.v1 names none and takes any number.
absl::Status CheckNumChoices(int64_t n, std::optional<float> temperature = std::nullopt);
absl::Status CheckCacheSalt(std::string_view salt);

// Returns the seed of a signed field. As in vLLM, -1 means none; any other number is taken as an
// unsigned number of 64 bits.
std::optional<uint64_t> SignedSeed(std::optional<int64_t> seed);

}  // namespace taopd
