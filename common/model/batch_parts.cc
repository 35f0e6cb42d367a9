#include "common/model/batch_parts.h"

#include <algorithm>

#include "common/base/check.h"

namespace taopd {

std::vector<PagedBatch> PartsOf(const PagedBatch& batch, int64_t num_parts) {
  TAOPD_CHECK(batch.inputs == nullptr);
  const int64_t num_rows = batch.token_ids_T.size(0);
  num_parts = std::clamp<int64_t>(num_parts, 1, std::max<int64_t>(num_rows / kRowsPerPart, 1));
  std::vector<PagedBatch> parts;
  std::vector<int64_t> first_rows;
  int64_t last = -1;
  for (PagedSequence sequence : batch.sequences) {
    // A sequence belongs to the part that contains its middle.
    const int64_t place = (2 * sequence.first_row + sequence.num_rows) * num_parts / (2 * num_rows);
    if (place != last) {
      parts.emplace_back();
      first_rows.push_back(sequence.first_row);
      last = place;
    }
    sequence.first_row -= first_rows.back();
    parts.back().sequences.push_back(sequence);
  }
  first_rows.push_back(num_rows);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].token_ids_T =
        batch.token_ids_T.narrow(0, first_rows[i], first_rows[i + 1] - first_rows[i]);
  }
  if (!parts.empty()) parts[0].on_layer = batch.on_layer;
  return parts;
}

}  // namespace taopd
