// The subcommand plan.
#include <iostream>

#include "common/io/disk_space.h"
#include "common/model/decoder.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/plan/memory_plan.h"
#include "trainer/run/effective_config.h"

namespace taopd {
namespace {

// Parses "cuda:80GB", or "80GB" for the kind of device that the run would use. A GPU need not be
// present.
absl::StatusOr<MemoryBudget> DescribedBudget(const TrainConfig& config,
                                             const std::string& device_memory) {
  std::string text = device_memory;
  if (text.find(':') == std::string::npos) {
    const std::string& device = config.trainer.device;
    const bool on_cuda =
        device.starts_with("cuda") || (device == "auto" && ParseDevice(device)->is_cuda());
    text = (on_cuda ? "cuda:" : "cpu:") + text;
  }
  auto budget = StatedBudget(MemoryLimits(), text);
  if (!budget.ok()) return Annotate(budget.status(), "--device-memory");
  return budget;
}

// Returns one line for each setting that was auto.
std::string ChosenText(TrainConfig asked, TrainConfig resolved) {
  const SettingTable before = DescribeSettings(asked), after = DescribeSettings(resolved);
  const std::string changed = ChangedSettings(after, before);
  return changed.empty() ? "" : "chosen for what is auto:\n" + changed;
}

}  // namespace

absl::Status RunPlan(const TrainConfig& config, const PlanCommandOptions& options) {
  return CatchExceptions([&]() -> absl::Status {
    const int64_t num_ranks = options.num_ranks;
    const auto budget = options.device_memory.empty()
                            ? BudgetOf(config)
                            : DescribedBudget(config, options.device_memory);
    if (!budget.ok()) return BadUsage(budget.status());
    const absl::Status checked = budget->on_cpu() ? CheckSettingsForCpu(config) : absl::OkStatus();
    if (!checked.ok()) return BadUsage(checked);
    EnginePlan refused;
    TrainConfig resolved = config;
    const auto plan = ResolveAuto(&resolved, config.student.model, *budget,
                                  {.num_ranks = num_ranks, .refused = &refused});
    if (plan.ok()) {
      const auto disk = DiskPlanOf(config, config.student.model, num_ranks);
      if (!disk.ok()) return BadData(disk.status());
      const std::string run_dir = config.run.Directory();
      std::cout << PlanText(*plan) << DiskPlanText(*disk, run_dir, FreeDiskBytes(run_dir))
                << ChosenText(config, resolved);
      if (options.rates) {
        const auto work = StepWorkOf(resolved, config.student.model, num_ranks);
        if (!work.ok()) return BadData(work.status());
        std::cout << "\n" << EstimateText(EstimateStep(*work, *options.rates));
      }
      std::cout << std::flush;
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(plan.status())) return BadData(plan.status());
    std::cout << PlanText(refused) << std::flush;
    return WithExitCode(kExitOutOfMemory, plan.status());
  });
}

}  // namespace taopd
