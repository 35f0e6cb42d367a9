#include "server/generation/request_fields.h"

#include "common/wire/teacher_protocol.h"

namespace taopd {
namespace {

constexpr char kPayload[] = "taopd/field";
constexpr int64_t kMaxChoices = 16384;      // per prompt; vLLM's VLLM_MAX_N_SEQUENCES
constexpr size_t kMaxCacheSaltBytes = 128;  // vLLM's

}  // namespace

absl::Status FieldStatus(std::string_view name, const std::string& message, absl::StatusCode code) {
  absl::Status status(code, message);
  status.SetPayload(kPayload, absl::Cord(absl::string_view(name.data(), name.size())));
  return status;
}

std::optional<std::string> FieldOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

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
