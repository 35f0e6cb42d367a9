#include "server/generation/request_limits.h"

#include <string>

#include "common/wire/teacher_protocol.h"
#include "server/generation/field_error.h"

namespace taopd {

absl::Status CheckRequestId(std::string_view name, std::string_view id) {
  if (id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return FieldError(name, name, " has ", id.size(), " bytes, the limit is ", kMaxRequestIdBytes,
                    ".");
}

absl::Status CheckNumChoices(int64_t n, std::optional<float> temperature) {
  if (n < 1) return FieldError("n", "n must be at least 1, got ", n, ".");
  if (n > kMaxChoices) return FieldError("n", "n must be at most ", kMaxChoices, ", got ", n, ".");
  if (n > 1 && temperature == 0.0f)
    return FieldError("n", "n must be 1 when using greedy sampling, got ", n, ".");
  return absl::OkStatus();
}

absl::Status CheckCacheSalt(std::string_view salt) {
  if (salt.size() <= kMaxCacheSaltBytes &&
      salt.find_first_of(std::string_view("@/\\\0", 4)) == std::string_view::npos) {
    return absl::OkStatus();
  }
  return FieldError("cache_salt", "Parameter 'cache_salt' must be at most ", kMaxCacheSaltBytes,
                    " characters and must not contain '@', '/', '\\\\', or NUL.");
}

std::optional<uint64_t> SignedSeed(std::optional<int64_t> seed) {
  if (!seed || *seed == -1) return std::nullopt;
  return static_cast<uint64_t>(*seed);
}

}  // namespace taopd
