// The checks of a row's support before anything is computed from it.
#pragma once

#include <cstdint>
#include <vector>

namespace taopd::cpu {

// The errors that a row given to a head may have.
enum class RowStatus {
  kOk,
  kDuplicateSupportId,
  kIdAfterPadding,
  kEmptySupport,       // but the objective needs a support
  kIncompleteSupport,  // but the objective needs the whole vocabulary
};

// Says what is wrong with support_ids, for error messages; "" for kOk.
const char* Describe(RowStatus status);

// Returns how many ids come before the padding, or -1 if an id follows padding.
int32_t SupportSize(const int32_t* support_ids, int32_t k);

// Checks a support of the size that SupportSize returned against the ObjectiveTraits of an
// objective.
RowStatus CheckSupportSize(int32_t size, uint32_t traits, int64_t vocab_size);

// Returns whether an id occurs twice. `seen` has a bit for each id of the vocabulary, all 0 before
// and after the call. REQUIRES: all ids are in the vocabulary.
bool HasDuplicate(const int32_t* support_ids, int32_t size, std::vector<uint64_t>* seen);

}  // namespace taopd::cpu
