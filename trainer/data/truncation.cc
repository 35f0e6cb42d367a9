#include "trainer/data/truncation.h"

namespace taopd {

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
