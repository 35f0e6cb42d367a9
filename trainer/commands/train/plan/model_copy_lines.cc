#include "trainer/commands/train/plan/model_copy_lines.h"

#include <limits>
#include <utility>

namespace taopd {
namespace {

bool IsOfBase(MemoryItem item) {
  using enum MemoryItem;
  return item == kEmbedding || item == kHead || item == kNormsAndBiases || item == kProjections ||
         item == kWeightFiles;
}

bool IsOfSteps(MemoryItem item) {
  using enum MemoryItem;
  return item == kActivations || item == kHeadWorkspace || item == kKvPool;
}

}  // namespace

std::vector<MemoryLine> LinesOfModelCopy(const TrainConfig& config, EnginePlanInput input,
                                         const ModelCopyLines& names) {
  input.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  const bool shares_base = input.weights_are_parameters && config.student.lora.is_on();
  const auto lora = config.student.lora.Counts(input.config);
  const auto plan = PlanEngine(input);
  if (!plan.ok() || !lora.ok()) return {};
  std::vector<MemoryLine> lines;
  if (shares_base) {
    const int64_t bytes = 4 * lora->adapters + SizeOf(input.dtype) * lora->saved();
    AddLine({names.weights, input.budget.device, MemoryKind::kHeld, bytes,
             "adapters of its own, with their merged copies"},
            &lines);
  }
  for (const MemoryLine& line : plan->lines) {
    if (line.item == MemoryItem::kRuntime || (shares_base && IsOfBase(line.item))) continue;
    const bool is_of_steps = IsOfSteps(line.item);
    AddLine({is_of_steps ? names.engine : names.weights, line.device, line.kind, line.bytes,
             is_of_steps ? names.engine_note : names.weights_note},
            &lines);
  }
  return lines;
}

}  // namespace taopd
