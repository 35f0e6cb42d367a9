// The rows of a table by index, differentiable, on every device.
//
// If the table has a gradient target (gradient_target.h), its gradient is added there row by row,
// and no tensor [V, H], almost all of it zero, is allocated. On the CPU, the rows are added in the
// order of the ids, whatever the number of threads is. Otherwise this is at::embedding.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

// Returns [T, H] of a table [V, H] and int64 ids in [0, V). Rows of padding_id get no gradient; -1
// means that there is no such id. Throws c10::Error if shapes or devices do not match. Any thread
// may call it.
at::Tensor Embedding(const at::Tensor& table_VH, const at::Tensor& ids_T, int64_t padding_id);

}  // namespace taopd
