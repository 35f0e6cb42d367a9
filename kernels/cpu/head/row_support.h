// What may be wrong with a row's support, found before anything is computed from it.
#pragma once

#include <cstdint>

namespace taopd::cpu {

enum class RowStatus {
  kOk,
  kDuplicateSupportId,
  kIdBehindPadding,
  kEmptySupport,       // and an objective needs one
  kIncompleteSupport,  // and an objective needs the whole vocabulary
};

// What is wrong with support_ids, for error messages; "" for kOk.
const char* Describe(RowStatus status);

// How many ids come before the padding; -1 when an id stands behind padding.
int32_t SupportSize(const int32_t* support_ids, int32_t k);

// kOk, or what a support of that size lacks for objectives with these needs.
RowStatus CheckSupportSize(int32_t size, uint32_t needs, int64_t vocabulary_size);

// order[size] becomes the indices of the support by rising id; kOk, or kDuplicateSupportId.
RowStatus OrderSupport(const int32_t* support_ids, int32_t size, int32_t* order);

}  // namespace taopd::cpu
