#include "server/generation/field_error.h"

namespace taopd {
namespace {

constexpr char kPayload[] = "taopd/field";

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

}  // namespace taopd
