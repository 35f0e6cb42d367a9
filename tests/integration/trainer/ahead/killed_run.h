// A fixture that kills a run at random moments, resumes it each time, and lets it end.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {

class KilledRunTest : public TrainerTest {
 protected:
  // Returns the number of kills: `otherwise`, or TAOPD_NUM_KILLS (the ctest entries with the label
  // slow set it).
  static int64_t NumKills(int64_t otherwise) {
    return NumberFromEnvironment("TAOPD_NUM_KILLS", otherwise);
  }
  // Returns the length of a run that is to be killed so often.
  static int64_t StepsOf(int64_t num_kills) { return kStepsPerKill * (num_kills + 1); }

  // Returns the command that runs these arguments of taopd-trainer on several ranks.
  static std::vector<std::string> OnRanks(int64_t num_ranks, std::vector<std::string> arguments) {
    if (num_ranks > 1) {
      const std::vector<std::string> launch = {"launch", "--nproc", Concat(num_ranks), "--"};
      arguments.insert(arguments.begin(), launch.begin(), launch.end());
    }
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    return arguments;
  }

  // Runs `command` (of OnRanks, with --resume=auto) for the run `run` and kills it, or one of its
  // ranks; does so num_kills times. An undisturbed run takes `whole`. TAOPD_KILL_SEED is the seed
  // of the moments.
  void KillAtRandomMoments(const std::vector<std::string>& command, const std::string& run,
                           int64_t num_kills, absl::Duration whole) {
    const int64_t seed = NumberFromEnvironment("TAOPD_KILL_SEED", 1);
    std::printf("%lld kills, TAOPD_KILL_SEED=%lld\n", static_cast<long long>(num_kills),
                static_cast<long long>(seed));
    RandomStream random(static_cast<uint64_t>(seed));
    for (int64_t kill_number = 1; kill_number <= num_kills; ++kill_number) {
      Process trainer(command, dir_.File("killed.log"));
      // The moment is between the start and twice a kill's share of the whole run, but before the
      // run can end: its last steps are left to the last start.
      const absl::Duration moment =
          whole * (2 * random.NextUniform() / static_cast<double>(num_kills));
      PollUntil(moment, [&] {
        return NewestCheckpoint(run) >= kStepsPerKill * kill_number || !trainer.running();
      });
      ASSERT_TRUE(trainer.running()) << trainer.Output();
      const std::vector<pid_t> ranks = ChildrenOf(trainer);
      if (ranks.empty()) {
        trainer.Signal(SIGKILL);
      } else {
        kill(ranks[random.NextBelow(ranks.size())], SIGKILL);
      }
      ASSERT_EQ(trainer.Wait(absl::Seconds(60)), 128 + SIGKILL) << trainer.Output();
    }
  }

 private:
  static constexpr int64_t kStepsPerKill = 8;

  static int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::atoll(text) : otherwise;
  }
  // Returns the processes that `launcher` has started.
  static std::vector<pid_t> ChildrenOf(const Process& launcher) {
    std::istringstream children(
        ReadFile(Concat("/proc/", launcher.pid(), "/task/", launcher.pid(), "/children")));
    std::vector<pid_t> pids;
    for (pid_t pid; children >> pid;) pids.push_back(pid);
    return pids;
  }
};

}  // namespace taopd::testing
