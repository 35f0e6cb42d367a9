// The errors that a row given to a head may have.
#pragma once

namespace taopd::cpu {

enum class RowStatus {
  kOk,
  kDuplicateSupportId,
  kIdBehindPadding,
  kEmptySupport,       // but the objective needs a support
  kIncompleteSupport,  // but the objective needs the whole vocabulary
};

// Says what is wrong with support_ids, for error messages; "" for kOk.
const char* Describe(RowStatus status);

}  // namespace taopd::cpu
