// taopd-trainer plan: the memory that a training run would take.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddPlan(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    PlanCommandOptions plan;
    double teraflops = 0, memory_gb_per_s = 0, network_gb_per_s = 0, host_gb_per_s = 0;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Show the memory that a training configuration takes, line by line; reads no weights");
  flags->config.AddTo(command);
  command->add_option("--device-memory", flags->plan.device_memory,
                      "Plan for this device instead of this machine's: cuda:80GB, cpu:24GiB, or a "
                      "size alone, for the kind of trainer.device here");
  command
      ->add_option("--ranks", flags->plan.num_ranks,
                   "Plan for one of this many ranks, which divide prompts and optimizer state")
      ->check(NumberIn(1, 1024));
  // The time of a step on devices of these rates.
  CLI::Option* flops =
      command
          ->add_option(
              "--teraflops", flags->teraflops,
              "Estimate the time of a step on devices whose matrix products reach this rate")
          ->check(PositiveNumber());
  CLI::Option* memory = command
                            ->add_option("--memory-gb-per-s", flags->memory_gb_per_s,
                                         "The rate of each device's memory, for the estimate")
                            ->check(PositiveNumber())
                            ->needs(flops);
  flops->needs(memory);
  command
      ->add_option(
          "--network-gb-per-s", flags->network_gb_per_s,
          "The rate at which a rank sends to the others, for the estimate of several ranks")
      ->check(PositiveNumber())
      ->needs(flops);
  command
      ->add_option("--host-gb-per-s", flags->host_gb_per_s,
                   "The rate of the host's memory, for the estimate with optimizer.offload")
      ->check(PositiveNumber())
      ->needs(flops);
  return {command, [flags] {
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadUsage(status));
            if (flags->teraflops > 0) {
              if (flags->plan.num_ranks > 1 && flags->network_gb_per_s == 0) {
                return EndCommand(BadUsage(
                    InvalidArgument("--network-gb-per-s is needed to estimate several ranks")));
              }
              if (config.optimizer.offload && flags->host_gb_per_s == 0) {
                return EndCommand(BadUsage(InvalidArgument(
                    "--host-gb-per-s is needed to estimate optimizer.offload = true")));
              }
              flags->plan.rates =
                  DeviceRates{flags->teraflops * 1e12, flags->memory_gb_per_s * 1e9,
                              flags->network_gb_per_s * 1e9, flags->host_gb_per_s * 1e9};
            }
            return EndCommand(RunPlan(config, flags->plan));
          }};
}

}  // namespace taopd
