// The checks of a row's support before anything is computed from it. They assume that all ids are
// in range.
#pragma once

#include <cstdint>
#include <vector>

#include "taopd/head/row_status.h"

namespace taopd::cpu {

// Returns how many ids come before the padding, or -1 if an id follows padding.
int32_t SupportSize(const int32_t* support_ids, int32_t k);

// Checks a support of the size that SupportSize returned against the ObjectiveNeeds of an
// objective.
RowStatus CheckSupportSize(int32_t size, uint32_t needs, int64_t vocab_size);

// Returns whether an id occurs twice. `seen` has a bit for each id of the vocabulary, all 0 before
// and after the call.
bool HasDuplicate(const int32_t* support_ids, int32_t size, std::vector<uint64_t>* seen);

}  // namespace taopd::cpu
