#include "trainer/data/truncation.h"

namespace taopd {

absl::StatusOr<Truncation> ParseTruncation(const std::string& name) {
  if (name == "error") return Truncation::kError;
  if (name == "left") return Truncation::kLeft;
  if (name == "right") return Truncation::kRight;
  if (name == "middle") return Truncation::kMiddle;
  return InvalidArgument("truncation \"", name, "\" is none of error, left, right, middle");
}

std::vector<int32_t> TruncateIds(std::vector<int32_t> ids, int64_t max_length,
                                 Truncation truncation) {
  const int64_t num_cut = static_cast<int64_t>(ids.size()) - max_length;
  if (num_cut <= 0) return ids;
  // The first token that is cut.
  const int64_t begin = truncation == Truncation::kLeft    ? 0
                        : truncation == Truncation::kRight ? max_length
                                                           : max_length / 2;
  ids.erase(ids.begin() + begin, ids.begin() + begin + num_cut);
  return ids;
}

}  // namespace taopd
