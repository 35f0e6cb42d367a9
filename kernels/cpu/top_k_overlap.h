// Which tokens of the support are also among the student's own k most probable, without selecting
// those: a token of the support is one of them when fewer than k tokens are ahead of it, and that
// falls monotonically along the support sorted by logit. So a binary search needs a count ahead of
// log2(k) logits, and each count reads only the tiles whose maximum reaches that logit and stops at
// k.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/row_math.h"

namespace taopd::cpu {

// in_top_k[j] = 1 when ids[j] is among the k largest of the row, ties by lowest id, 0 otherwise.
// rest[V] is the row without the support (-inf in its places, complement.h), taken[k] the support's
// logits, tile_max the maxima of rest per kTileSize (RowMath::tile_max). `order` is scratch.
void MarkStudentTopK(const int32_t* ids, const float* taken, int32_t k, const float* rest,
                     const float* tile_max, int64_t vocabulary_size, std::vector<int32_t>* order,
                     uint8_t* in_top_k);

}  // namespace taopd::cpu
