#include "trainer/commands/train/plan/training_plan.h"

#include <algorithm>
#include <limits>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "trainer/commands/train/plan/memory_plan.h"

namespace taopd {
namespace {

// Returns the host memory left per rank. With a plan for a GPU, half of the available host memory
// counts as free.
int64_t HostBytesLeft(const EnginePlan& plan, int64_t num_local_ranks) {
  if (plan.budget.on_cpu()) return plan.budget.limit_bytes - plan.total_bytes;
  // The state that is offloaded to the host is not allocated yet.
  const int64_t own_bytes = AvailableMemoryBytes() / num_local_ranks;
  return std::max<int64_t>(0, own_bytes - HeldBytes(plan.lines, "cpu")) / 2;
}

}  // namespace

absl::Status PlanMemory(TrainingParts& parts) {
  if (parts.config.trainer.async_save == AsyncSave::kOn)
    parts.copy_limit_bytes = std::numeric_limits<int64_t>::max();
  if (parts.config.trainer.memory_plan == PlanPolicy::kOff) return absl::OkStatus();
  const auto budget = BudgetOf(parts.config, parts.group->local_world_size());
  EnginePlan refused;
  const RunPlanOptions options = {.num_ranks = parts.group->world_size(), .refused = &refused};
  const auto plan = budget.ok()
                        ? ResolveAuto(&parts.config, parts.config.student.model, *budget, options)
                        : absl::StatusOr<EnginePlan>(budget.status());
  if (plan.ok()) {
    parts.memory_plan = PlanText(*plan);
    parts.plan_gb = static_cast<double>(plan->total_bytes) / static_cast<double>(int64_t{1} << 30);
    if (parts.config.trainer.async_save == AsyncSave::kAuto) {
      parts.copy_limit_bytes = HostBytesLeft(*plan, parts.group->local_world_size());
    }
    LogInfo("memory plan", {{"device", plan->budget.device},
                            {"total", MemoryText(plan->total_bytes)},
                            {"limit", MemoryText(plan->budget.limit_bytes)},
                            {"kv_pool", MemoryText(plan->kv_pool_bytes())}});
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(plan.status())) {
    parts.memory_plan = PlanText(refused);
    if (parts.config.trainer.memory_plan == PlanPolicy::kRefuse)
      return WithExitCode(kExitOutOfMemory, plan.status());
    LogWarning("memory plan", {{"warning", plan.status()}});
  }
  // Whatever else is wrong with the model or its settings, what follows says it better.
  return absl::OkStatus();
}

absl::Status AgreeOnPlan(TrainingParts& parts) {
  const auto largest = [&parts](int64_t mine) {
    return WithExitCode(kExitUnavailable, parts.group->AgreeOnLargest(mine));
  };
  TAOPD_ASSIGN_OR_RETURN(const int64_t smallest, largest(-parts.config.trainer.MicroBatchTokens()));
  parts.config.trainer.micro_batch_tokens = -smallest;
  TAOPD_ASSIGN_OR_RETURN(const int64_t sharded,
                         largest(parts.config.dist.gradients == GradientSums::kSharded ? 1 : 0));
  if (sharded > 0) parts.config.dist.gradients = GradientSums::kSharded;
  return absl::OkStatus();
}

}  // namespace taopd
