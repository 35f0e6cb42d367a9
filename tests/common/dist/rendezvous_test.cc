#include "common/dist/rendezvous.h"

#include <map>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<Rendezvous> Read(const Variables& variables) {
  return ReadRendezvous([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

// Returns `base` with one variable set to another value; an empty one removes it.
Variables With(Variables base, const std::string& name, const std::string& value) {
  base[name] = value;
  if (value.empty()) base.erase(name);
  return base;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_RUN_ID", "abc"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

TEST(RendezvousTest, WithoutLauncherTheProcessIsAlone) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous where, Read({{"HOME", "/root"}}));
  EXPECT_EQ(where.rank, 0);
  EXPECT_EQ(where.world_size, 1);
  EXPECT_EQ(where.master_addr, "");
}

TEST(RendezvousTest, Torchrun) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous where, Read(kTorchrun));
  EXPECT_EQ(where.rank, 5);
  EXPECT_EQ(where.world_size, 8);
  EXPECT_EQ(where.local_rank, 1);
  EXPECT_EQ(where.local_world_size, 4);
  EXPECT_EQ(where.master_addr, "node0");
  EXPECT_EQ(where.master_port, 29400);
  EXPECT_TRUE(where.launcher_serves_store);
  EXPECT_EQ(where.prefix, "taopd/abc/2");
  EXPECT_EQ(where.secret, "");
  EXPECT_EQ(Read(With(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "3"))->prefix, "taopd/abc/3");
  EXPECT_EQ(Read(With(kTorchrun, "TAOPD_RANK_SECRET", "s3"))->secret, "s3");
  // The ranks of the environment go before Kubeflow's.
  EXPECT_EQ(Read(With(With(kTorchrun, "PET_NNODES", "2"), "PET_NODE_RANK", "1"))->rank, 5);
}

TEST(RendezvousTest, Kubeflow) {
  const Variables variables = {{"PET_NNODES", "3"},
                               {"PET_NPROC_PER_NODE", "auto"},
                               {"PET_NODE_RANK", "2"},
                               {"PET_MASTER_ADDR", "trainer-node-0-0.trainer"},
                               {"PET_MASTER_PORT", "29500"}};
  ASSERT_OK_AND_ASSIGN(const Rendezvous where, Read(variables));
  EXPECT_EQ(where.rank, 2);
  EXPECT_EQ(where.world_size, 3);
  EXPECT_EQ(where.master_addr, "trainer-node-0-0.trainer");
  EXPECT_ERROR(Read(With(variables, "PET_NPROC_PER_NODE", "2")), kInvalidArgument,
               "PET_NPROC_PER_NODE = \"2\"");
  EXPECT_ERROR(Read(With(variables, "PET_NODE_RANK", "3")), kInvalidArgument, "PET_NODE_RANK = 3");
  EXPECT_ERROR(Read(With(variables, "PET_NNODES", "1:4")), kInvalidArgument, "PET_NNODES");
}

TEST(RendezvousTest, IndexedJobs) {
  const Variables jobset = {{"JOB_COMPLETION_INDEX", "1"},
                            {"WORLD_SIZE", "2"},
                            {"JOBSET_COORDINATOR", "train-trainer-0-0.train"},
                            {"MASTER_PORT", "29500"},
                            {"RESTART_ATTEMPT", "4"}};
  ASSERT_OK_AND_ASSIGN(const Rendezvous where, Read(jobset));
  EXPECT_EQ(where.rank, 1);
  EXPECT_EQ(where.world_size, 2);
  EXPECT_EQ(where.master_addr, "train-trainer-0-0.train");
  EXPECT_EQ(where.prefix, "taopd/4");
  ASSERT_OK_AND_ASSIGN(const Rendezvous by_address, Read(With(jobset, "MASTER_ADDR", "head")));
  EXPECT_EQ(by_address.master_addr, "head");
  // Indices without a world are runs of their own.
  ASSERT_OK_AND_ASSIGN(const Rendezvous alone, Read({{"JOB_COMPLETION_INDEX", "1"}}));
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_ERROR(Read(With(jobset, "JOB_COMPLETION_INDEX", "2")), kInvalidArgument,
               "JOB_COMPLETION_INDEX = 2 is not in [0, 1]");
}

TEST(RendezvousTest, Slurm) {
  const Variables step = {{"SLURM_STEP_ID", "0"},       {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_PROCID", "3"},        {"SLURM_LOCALID", "1"},
                          {"SLURM_JOB_ID", "71234567"}, {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                          {"SLURM_RESTART_COUNT", "1"}};
  ASSERT_OK_AND_ASSIGN(const Rendezvous where, Read(step));
  EXPECT_EQ(where.rank, 3);
  EXPECT_EQ(where.world_size, 4);
  EXPECT_EQ(where.local_rank, 1);
  EXPECT_EQ(where.master_addr, "gpu03");
  EXPECT_EQ(where.master_port, 24567);
  EXPECT_EQ(where.prefix, "taopd/1");
  // In the job's script, outside of srun, the task variables are those of the whole job.
  ASSERT_OK_AND_ASSIGN(const Rendezvous script, Read(With(step, "SLURM_STEP_ID", "")));
  EXPECT_EQ(script.world_size, 1);
}

// The number of ranks that share the machine decides what each may take of its memory and of its
// cores.
TEST(RendezvousTest, SlurmSaysHowManyTasksTheNodeHas) {
  const Variables step = {{"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "6"},
                          {"SLURM_PROCID", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_NODELIST", "gpu[1-2]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4,2"}};
  EXPECT_EQ(Read(step)->local_world_size, 2);
  EXPECT_EQ(Read(With(step, "SLURM_NODEID", "0"))->local_world_size, 4);
  EXPECT_EQ(Read(With(step, "SLURM_STEP_TASKS_PER_NODE", "3(x2)"))->local_world_size, 3);
  EXPECT_ERROR(Read(With(step, "SLURM_STEP_TASKS_PER_NODE", "6")), kInvalidArgument, "no node 1");
  EXPECT_ERROR(Read(With(step, "SLURM_STEP_TASKS_PER_NODE", "4(x")), kInvalidArgument,
               "SLURM_STEP_TASKS_PER_NODE");
  EXPECT_ERROR(Read(With(step, "SLURM_STEP_TASKS_PER_NODE", "5,1")), kInvalidArgument,
               "SLURM_LOCALID = 1 is not in [0, 0]");
  // Without the node's number a list of several entries says nothing.
  EXPECT_EQ(Read(With(step, "SLURM_NODEID", ""))->local_world_size, 0);

  // Without the list, the requested number counts if the world consists of that many whole nodes.
  const Variables asked = With(With(step, "SLURM_STEP_TASKS_PER_NODE", ""),  //
                               "SLURM_NTASKS_PER_NODE", "3");
  EXPECT_EQ(Read(asked)->local_world_size, 3);
  EXPECT_EQ(Read(With(asked, "SLURM_NTASKS_PER_NODE", "4"))->local_world_size, 0);
  EXPECT_EQ(Read(With(asked, "SLURM_NTASKS_PER_NODE", ""))->local_world_size, 0);
  const Variables alone = With(With(asked, "SLURM_PROCID", "0"), "SLURM_LOCALID", "0");
  EXPECT_EQ(Read(With(alone, "SLURM_STEP_NUM_TASKS", "1"))->local_world_size, 1);
}

TEST(RendezvousTest, TasksOfANode) {
  EXPECT_EQ(*TasksOfNode("2(x3),1", 0), 2);
  EXPECT_EQ(*TasksOfNode("2(x3),1", 2), 2);
  EXPECT_EQ(*TasksOfNode("2(x3),1", 3), 1);
  EXPECT_EQ(*TasksOfNode("12", 0), 12);
  for (const char* list : {"", "x", "2(", "2(x", "2(x)", "2(x0)", "0", "-1", "2(x3", "2,", "2;3"}) {
    EXPECT_ERROR(TasksOfNode(list, 5), kInvalidArgument, "");
  }
}

TEST(RendezvousTest, ALauncherThatDoesNotSayLeavesTheLocalRanksOpen) {
  const Variables by_hand = With(With(kTorchrun, "LOCAL_WORLD_SIZE", ""), "LOCAL_RANK", "");
  EXPECT_EQ(Read(by_hand)->local_world_size, 0);
  EXPECT_EQ(Read(With(With(by_hand, "WORLD_SIZE", "1"), "RANK", "0"))->local_world_size, 1);
}

TEST(RendezvousTest, FirstHosts) {
  EXPECT_EQ(*FirstHostOf("login"), "login");
  EXPECT_EQ(*FirstHostOf("a1,b2"), "a1");
  EXPECT_EQ(*FirstHostOf("gpu[03-05,9],login"), "gpu03");
  EXPECT_EQ(*FirstHostOf("rack[7]-eth0,x"), "rack7-eth0");
  EXPECT_EQ(*FirstHostOf("rack[7],x[1-2]"), "rack7");
  EXPECT_ERROR(FirstHostOf("r[1-2]n[3-4]"), kInvalidArgument, "has several [ in a name");
  EXPECT_ERROR(FirstHostOf("gpu[03"), kInvalidArgument, "[ without a ]");
  EXPECT_ERROR(FirstHostOf(""), kInvalidArgument, "names no host");
}

TEST(RendezvousTest, AFileTakesThePlaceOfTheAddress) {
  ASSERT_OK_AND_ASSIGN(
      const Rendezvous where,
      Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TAOPD_RENDEZVOUS_FILE", "/tmp/meet"}}));
  EXPECT_EQ(where.store_file, "/tmp/meet");
  EXPECT_EQ(where.master_addr, "");
}

TEST(RendezvousTest, OnlyRankZeroTakesTheSocket) {
  const Variables launched = With(kTorchrun, "TAOPD_LISTEN_FD", "7");
  EXPECT_EQ(Read(launched)->listen_fd, -1);
  EXPECT_EQ(Read(With(launched, "RANK", "0"))->listen_fd, 7);
}

TEST(RendezvousTest, RefusesByName) {
  struct Case {
    const char *name, *value, *message;
  };
  for (const Case& c :
       {Case{"RANK", "", "RANK is not set"}, Case{"WORLD_SIZE", "", "WORLD_SIZE is not set"},
        Case{"RANK", "8", "RANK = 8 is not in [0, 7]"}, Case{"RANK", "-1", "RANK = -1"},
        Case{"RANK", "1x", "RANK = \"1x\" is not a whole number"},
        Case{"LOCAL_RANK", "4", "LOCAL_RANK = 4 is not in [0, 3]"},
        Case{"LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE = 9"},
        Case{"MASTER_ADDR", "", "MASTER_ADDR is not set"},
        Case{"MASTER_PORT", "65536", "MASTER_PORT = 65536"}}) {
    EXPECT_ERROR(Read(With(kTorchrun, c.name, c.value)), kInvalidArgument, c.message);
  }
}

}  // namespace
}  // namespace taopd::testing
