// taopd-trainer launch: several ranks of a training run on this machine.
#include <memory>

#include "common/dist/rendezvous.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/launch/rank_processes.h"

namespace taopd {
namespace {

constexpr int64_t kMaxProcesses = 1024;

// Kubeflow describes the nodes with PET_ variables; without them this machine is the only one.
absl::Status ReadNodes(const Environment& environment, LaunchOptions* options) {
  if (!environment("PET_NNODES")) return absl::OkStatus();
  // For the rendezvous of the nodes, each node counts as one process.
  TAOPD_ASSIGN_OR_RETURN(const Rendezvous node,
                         ReadRendezvous([&](const std::string& name) -> std::optional<std::string> {
                           if (name == "PET_NPROC_PER_NODE" || !name.starts_with("PET_"))
                             return std::nullopt;
                           return environment(name);
                         }));
  options->num_nodes = node.world_size;
  options->node_rank = node.rank;
  options->master_addr = node.master_addr;
  options->master_port = node.master_port;
  return absl::OkStatus();
}

}  // namespace

Subcommand AddLaunch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "launch", "Start several ranks of a command on this machine: launch --nproc 2 -- train ...");
  command->add_option("--nproc", options->num_processes, "Ranks on this machine")
      ->required()
      ->check(NumberIn(1, kMaxProcesses));
  command->add_option("command", options->command, "A subcommand with its flags, after --")
      ->required();
  return {
      command, [options]() -> absl::Status {
        const Environment environment = ProcessEnvironment();
        if (environment("RANK")) {
          return BadUsage(
              InvalidArgument("RANK is set: this process is a rank already and starts no others"));
        }
        TAOPD_RETURN_IF_ERROR(BadUsage(ReadNodes(environment, options.get())));
        options->command.insert(options->command.begin(), "/proc/self/exe");
        TAOPD_ASSIGN_OR_RETURN(const int code, WithExitCode(kExitUnavailable, RunRanks(*options)));
        return EndsWith(code);
      }};
}

}  // namespace taopd
