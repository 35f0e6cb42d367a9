// Collects on every rank what each rank holds for its shard of the parameters.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/model/decoder.h"
#include "trainer/optim/parameter_layout.h"

namespace taopd {

// Returns the elements of a piece, one-dimensional.
using PieceElements = std::function<at::Tensor(const ParameterPiece& piece)>;

// Returns the options of a buffer for elements of all parameters: their device, and the widest of
// their types. REQUIRES: there is a parameter.
at::TensorOptions GatherOptions(const std::vector<NamedParameter>& parameters);

// Copies each rank's own elements, `mine`, to `all` on every rank. On the way they have the type
// and the device of `options`. `mine` is asked for pieces of this rank's shard, `all` for pieces
// of all shards. All ranks must call it; returns the errors of the group.
absl::Status GatherPieces(const ParameterLayout& layout, ProcessGroup* group,
                          const at::TensorOptions& options, const PieceElements& mine,
                          const PieceElements& all);

}  // namespace taopd
