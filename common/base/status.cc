#include "common/base/status.h"

#include <sstream>

#include "common/base/exit_code.h"

namespace taopd {

std::string ConcatParts(std::initializer_list<ConcatPart> parts) {
  std::ostringstream out;
  out.precision(9);
  for (const ConcatPart& part : parts) part.Print(out);
  return std::move(out).str();
}

absl::Status StatusOf(absl::StatusCode code, std::initializer_list<ConcatPart> parts) {
  return absl::Status(code, ConcatParts(parts));
}

absl::Status Annotate(const absl::Status& status, const std::string& where) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), Concat(where, ": ", std::string(status.message())));
  if (const auto lost = status.GetPayload(kLostRankUrl)) annotated.SetPayload(kLostRankUrl, *lost);
  return annotated;
}

}  // namespace taopd
