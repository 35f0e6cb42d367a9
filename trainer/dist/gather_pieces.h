// Collects the elements of all ranks' shards of the parameters on every rank.
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

// Copies each rank's own elements, `mine`, into `parameters` on every rank. On the way they have
// the parameters' device and the widest of their types. `mine` is asked for pieces of this rank's
// shard. All ranks must call it; returns the errors of the group. REQUIRES: there is a parameter.
absl::Status GatherPieces(const ParameterLayout& layout, ProcessGroup* group,
                          const std::vector<NamedParameter>& parameters, const PieceElements& mine);

}  // namespace taopd
