#include "trainer/dist/gather_pieces.h"

#include <deque>
#include <utility>

#include "trainer/optim/flat_gradients.h"

namespace taopd {
namespace {

// A bucket that is being gathered from all ranks.
struct GatheredBucket {
  FlatRange range;
  at::Tensor slice, all;
  ProcessGroup::WorkPtr work;
};
constexpr size_t kMaxGathersInFlight = 4;

at::Tensor InBuffer(const at::Tensor& buffer, int64_t begin, const ParameterPiece& piece) {
  return buffer.narrow(0, piece.flat_begin - begin, piece.size);
}

// Returns the options of a buffer for elements of all parameters.
at::TensorOptions BufferOptions(const std::vector<NamedParameter>& parameters) {
  // Adapters are float32 even next to modules that have the base's type.
  at::TensorOptions options = parameters.at(0).second.options();
  for (const auto& [name, parameter] : parameters) {
    if (parameter.scalar_type() == at::kFloat) options = options.dtype(at::kFloat);
  }
  return options.requires_grad(false);
}

}  // namespace

absl::Status GatherPieces(const ParameterLayout& layout, ProcessGroup* group,
                          const std::vector<NamedParameter>& parameters,
                          const PieceElements& mine) {
  const at::NoGradGuard no_grad;
  const auto all = [&](const ParameterPiece& piece) {
    return ElementsOf(parameters[piece.position].second, piece);
  };
  if (group->world_size() == 1) {
    for (const ParameterPiece& piece : layout.Pieces(layout.Shard(0)))
      all(piece).copy_(mine(piece));
    return absl::OkStatus();
  }
  const at::TensorOptions options = BufferOptions(parameters);
  std::deque<GatheredBucket> in_flight;
  const auto receive = [&]() -> absl::Status {
    const GatheredBucket oldest = std::move(in_flight.front());
    in_flight.pop_front();
    TAOPD_RETURN_IF_ERROR(oldest.work->Wait());
    for (const ParameterPiece& piece : layout.Pieces({oldest.range})) {
      all(piece).copy_(InBuffer(oldest.all, oldest.range.begin, piece));
    }
    return absl::OkStatus();
  };
  for (const GradientBucket& bucket : layout.buckets()) {
    if (in_flight.size() == kMaxGathersInFlight) TAOPD_RETURN_IF_ERROR(receive());
    const FlatRange range = layout.SliceOfBucket(bucket, group->rank());
    GatheredBucket next;
    next.range = bucket.range;
    next.slice = at::zeros({range.size()}, options);
    for (const ParameterPiece& piece : layout.Pieces({range})) {
      InBuffer(next.slice, range.begin, piece).copy_(mine(piece));
    }
    next.all = at::empty({bucket.range.size()}, next.slice.options());
    next.work = group->StartAllGather(next.all, next.slice);
    in_flight.push_back(std::move(next));
  }
  while (!in_flight.empty()) TAOPD_RETURN_IF_ERROR(receive());
  return absl::OkStatus();
}

}  // namespace taopd
