#include "taopd/head/row_support.h"

#include "taopd/objective/objective.h"

namespace taopd::cpu {

const char* Describe(RowStatus status) {
  switch (status) {
    case RowStatus::kOk:
      return "";
    case RowStatus::kDuplicateSupportId:
      return "support_ids holds an id twice in one row";
    case RowStatus::kIdAfterPadding:
      return "support_ids holds an id after padding (-1) in one row";
    case RowStatus::kEmptySupport:
      return "support_ids has k = 0 in one row; the objective needs a support";
    case RowStatus::kIncompleteSupport:
      return "support_ids is not the whole vocabulary in one row; the objective needs it";
  }
  return "";
}

int32_t SupportSize(const int32_t* support_ids, int32_t k) {
  int32_t size = 0;
  while (size < k && support_ids[size] >= 0) ++size;
  for (int32_t j = size; j < k; ++j) {
    if (support_ids[j] >= 0) return -1;
  }
  return size;
}

RowStatus CheckSupportSize(int32_t size, uint32_t traits, int64_t vocab_size) {
  if (size < 0) return RowStatus::kIdAfterPadding;
  if ((traits & kNeedsSupport) && size == 0) return RowStatus::kEmptySupport;
  if ((traits & kNeedsFullVocabulary) && size != vocab_size) {
    return RowStatus::kIncompleteSupport;
  }
  return RowStatus::kOk;
}

bool HasDuplicate(const int32_t* support_ids, int32_t size, std::vector<uint64_t>* seen) {
  const auto bit = [&](int32_t j) { return uint64_t{1} << (support_ids[j] % 64); };
  bool duplicate = false;
  for (int32_t j = 0; j < size; ++j) {
    uint64_t& word = (*seen)[support_ids[j] / 64];
    duplicate = duplicate || (word & bit(j)) != 0;
    word |= bit(j);
  }
  for (int32_t j = 0; j < size; ++j) (*seen)[support_ids[j] / 64] = 0;
  return duplicate;
}

}  // namespace taopd::cpu
