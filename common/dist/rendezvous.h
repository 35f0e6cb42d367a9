// The rank of this process and its world, as its launcher states them in the environment. Does not
// use LibTorch.
//
// The first of these launchers that has set its variables counts:
//   1. torchrun, `taopd-trainer launch` and any other program that sets RANK and WORLD_SIZE, with
//      MASTER_ADDR and MASTER_PORT for more than one rank; LOCAL_RANK and LOCAL_WORLD_SIZE if there
//      are several ranks on a machine
//   2. Kubeflow: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT; one process per node
//   3. an Indexed Job of Kubernetes, alone or in a JobSet: JOB_COMPLETION_INDEX is the rank if
//      WORLD_SIZE is given; the address is MASTER_ADDR or JOBSET_COORDINATOR, the port MASTER_PORT
//   4. srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID; the ranks of this node are its
//      entry (SLURM_NODEID) of SLURM_STEP_TASKS_PER_NODE, or SLURM_NTASKS_PER_NODE; the address is
//      MASTER_ADDR or the first host of SLURM_STEP_NODELIST, the port MASTER_PORT or one made from
//      SLURM_JOB_ID
//
// Without any of them, the process is alone. TAOPD_RENDEZVOUS_FILE names a file on a shared file
// system that replaces address and port; no process may have used it before.
//
// TAOPD_RANK_SECRET, the same text for all ranks, keeps strangers out of the ranks' watch
// (watch_token.h). `taopd-trainer launch` makes one up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct Rendezvous {
  int64_t rank = 0;
  int64_t world_size = 1;
  // The rank among those of this machine. local_world_size is 0 if the launcher does not give it;
  // the ranks then find out both when they meet (ProcessGroup::Connect).
  int64_t local_rank = 0;
  int64_t local_world_size = 1;

  // The address at which the ranks meet: rank 0 serves a store there. Empty for a world of one.
  std::string master_addr;
  int master_port = 0;
  // The listening socket for the store, if rank 0 has inherited one from its launcher; otherwise
  // -1.
  int listen_fd = -1;
  // The launcher serves the store (torchrun's agent): rank 0 connects like the others.
  bool launcher_serves_store = false;
  // A file that replaces the address.
  std::string store_file;
  // TAOPD_RANK_SECRET; empty if there is none.
  std::string secret;
  // Differs from one restart to the next, so that a rank of the previous attempt cannot join.
  // Derived from TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, RESTART_ATTEMPT (a JobSet's
  // annotation) and SLURM_RESTART_COUNT.
  std::string prefix;
  // The variables that were used, for people: "RANK, WORLD_SIZE".
  std::string source = "none";
};

// Returns the value of a variable, or nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

// Returns INVALID_ARGUMENT with the variable's name if a value is missing, cannot be read, or
// contradicts another.
absl::StatusOr<Rendezvous> ReadRendezvous(const Environment& environment);

// Returns the number of tasks on node `node` of a list as Slurm writes it: "2(x3),1" has 2 on nodes
// 0 to 2 and 1 on node 3.
absl::StatusOr<int64_t> TasksOfNode(const std::string& tasks_per_node, int64_t node);

// Returns the first host of a list as Slurm writes it: "gpu[03-05,9],login" begins with "gpu03".
absl::StatusOr<std::string> FirstHostOf(const std::string& node_list);

}  // namespace taopd
