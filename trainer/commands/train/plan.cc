// The subcommand plan: the memory that a training run would take. Reads no weights.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/io/disk_space.h"
#include "common/memory/step_estimate.h"
#include "common/model/decoder.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/run/resume/resume_check.h"
#include "trainer/setup/engine_options.h"
#include "trainer/setup/plan/memory_plan.h"

namespace taopd {
namespace {

struct PlanFlags {
  ConfigFlags config;
  // The memory of another device than this machine's, "80GB" or "cuda:80GB"; may be empty.
  std::string device_memory;
  int64_t num_ranks = 1;  // the plan is that of one of this many processes
  // The rates of each rank's device. If teraflops is set, the time of a step is estimated.
  double teraflops = 0, memory_gb_per_s = 0, network_gb_per_s = 0, host_gb_per_s = 0;
  bool json = false;
};

absl::Status CheckRates(const PlanFlags& flags, const TrainConfig& config) {
  if (flags.teraflops == 0) return absl::OkStatus();
  if (flags.num_ranks > 1 && flags.network_gb_per_s == 0)
    return InvalidArgument("--network-gb-per-s is needed to estimate several ranks");
  if (config.optimizer.offload && flags.host_gb_per_s == 0)
    return InvalidArgument("--host-gb-per-s is needed to estimate optimizer.offload = true");
  return absl::OkStatus();
}

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
  return Annotate(StatedBudget(MemoryLimits(), text), "--device-memory");
}

// Returns one line for each setting that was auto.
std::string ChosenText(TrainConfig asked, TrainConfig resolved) {
  const std::string changed =
      ChangedSettings(FactsOf(DescribeSettings(resolved)), FactsOf(DescribeSettings(asked)));
  return changed.empty() ? "" : "chosen for what is auto:\n" + changed;
}

// Fails with kExitOutOfMemory, after the table, if the run does not fit.
absl::Status Plan(const PlanFlags& flags) {
  TAOPD_ASSIGN_OR_RETURN(const TrainConfig config, flags.config.ReadTrainConfig());
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckRates(flags, config)));
  TAOPD_ASSIGN_OR_RETURN(
      const MemoryBudget budget,
      BadUsage(flags.device_memory.empty() ? BudgetOf(config)
                                           : DescribedBudget(config, flags.device_memory)));
  if (budget.on_cpu()) TAOPD_RETURN_IF_ERROR(BadUsage(CheckSettingsForCpu(config)));
  EnginePlan refused;
  TrainConfig resolved = config;
  const auto plan = ResolveAuto(&resolved, config.student.model, budget,
                                {.num_ranks = flags.num_ranks, .refused = &refused});
  if (!plan.ok()) {
    if (!absl::IsResourceExhausted(plan.status())) return BadData(plan.status());
    if (!flags.json) std::cout << PlanText(refused) << std::flush;
    return WithExitCode(kExitOutOfMemory, plan.status());
  }
  TAOPD_ASSIGN_OR_RETURN(const DiskPlan disk,
                         BadData(DiskPlanOf(config, config.student.model, flags.num_ranks)));
  if (flags.json) {
    const int64_t host_bytes = budget.on_cpu() ? plan->total_bytes : HeldBytes(plan->lines, "cpu");
    const nlohmann::ordered_json totals = {{"device", budget.device},
                                           {"device_bytes", plan->total_bytes},
                                           {"device_limit_bytes", budget.limit_bytes},
                                           {"host_bytes", host_bytes},
                                           {"checkpoint_bytes", disk.checkpoint_bytes},
                                           {"num_checkpoints", disk.num_checkpoints},
                                           {"disk_bytes", disk.total_bytes()}};
    std::cout << totals.dump(2) << std::endl;
    return absl::OkStatus();
  }
  const std::string run_dir = config.run.Directory();
  std::cout << PlanText(*plan) << DiskPlanText(disk, run_dir, FreeDiskBytes(run_dir))
            << ChosenText(config, resolved);
  if (flags.teraflops > 0) {
    TAOPD_ASSIGN_OR_RETURN(const StepWork work,
                           BadData(StepWorkOf(resolved, config.student.model, flags.num_ranks)));
    const DeviceRates rates{flags.teraflops * 1e12, flags.memory_gb_per_s * 1e9,
                            flags.network_gb_per_s * 1e9, flags.host_gb_per_s * 1e9};
    std::cout << "\n" << EstimateText(EstimateStep(work, rates));
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

}  // namespace

Subcommand AddPlan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show the memory that a configuration takes, line by line, without reading weights");
  flags->config.AddTo(command);
  command->add_option("--device-memory", flags->device_memory,
                      "Plan for this device instead of this machine's: cuda:80GB, cpu:24GiB, or a "
                      "size alone, for the kind of trainer.device here");
  command
      ->add_option(
          "--ranks", flags->num_ranks,
          "Plan for one of this many ranks, which share the prompts and the optimizer state")
      ->check(NumberIn(1, 1024));
  CLI::Option* flops =
      command
          ->add_option(
              "--teraflops", flags->teraflops,
              "Estimate the time of a step on devices whose matrix products reach this rate")
          ->check(PositiveNumber());
  CLI::Option* memory = command
                            ->add_option("--memory-gb-per-s", flags->memory_gb_per_s,
                                         "Memory bandwidth of each device, for the estimate")
                            ->check(PositiveNumber())
                            ->needs(flops);
  flops->needs(memory);
  command
      ->add_option(
          "--network-gb-per-s", flags->network_gb_per_s,
          "Bandwidth at which a rank sends to the others, for the estimate of several ranks")
      ->check(PositiveNumber())
      ->needs(flops);
  command
      ->add_option("--host-gb-per-s", flags->host_gb_per_s,
                   "Memory bandwidth of the host, for the estimate with optimizer.offload")
      ->check(PositiveNumber())
      ->needs(flops);
  command->add_flag("--json", flags->json, "Print the totals as one JSON object")->excludes(flops);
  return {command, [flags] { return Plan(*flags); }};
}

}  // namespace taopd
