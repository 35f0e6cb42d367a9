// The checks of a row's support before anything is computed from it. They assume that all ids are
// in range.
#pragma once

#include <cstdint>

#include "taopd/head/row_status.h"

namespace taopd::cpu {

// Returns how many ids come before the padding, or -1 if an id follows padding.
int32_t SupportSize(const int32_t* support_ids, int32_t k);

// Checks a support of the size that SupportSize returned against the ObjectiveNeeds of an
// objective.
RowStatus CheckSupportSize(int32_t size, uint32_t needs, int64_t vocabulary_size);

// Writes the indices of the support to order[size], in ascending order of their ids. Returns
// kDuplicateSupportId if an id occurs twice, otherwise kOk.
RowStatus OrderSupport(const int32_t* support_ids, int32_t size, int32_t* order);

}  // namespace taopd::cpu
