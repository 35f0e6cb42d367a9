// A fixture with a teacher and servers of rollouts, which tests kill and start again.
#pragma once

#include <absl/strings/str_join.h>

#include <string>
#include <vector>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {

class TrainerEndpointsTest : public TrainerTest {
 protected:
  // A server of rollouts.
  struct Worker {
    std::optional<ServingTeacher> process;
    int port = 0;
    std::string model_dir;  // empty: that of the fixture's student
    std::string endpoint() const { return Concat("grpc://127.0.0.1:", port); }
  };
  void Start(Worker* worker, const Strings& more = {}) {
    const std::string& model = worker->model_dir;
    worker->process.emplace(model.empty() ? dir_.File("student/model") : model,
                            Joined(Words("--trainable --kv-cache-memory-bytes 4MiB"), more),
                            worker->port);
    worker->port = worker->process->grpc_port();
  }
  // Ends a server without a chance to say so, and starts it again on its port.
  void KillAndRestart(Worker* worker, const Strings& more = {}) {
    worker->process->Kill();
    Start(worker, more);
  }
  // Kills one of the servers repeatedly while the trainer runs, at moments that do not depend on
  // its steps, and starts it again. Returns the number of kills.
  int64_t KillServersOf(Process& trainer, const std::vector<Worker*>& servers, int64_t most,
                        absl::Duration shortest, absl::Duration longest) {
    RandomStream random(5);
    for (int64_t num_kills = 0; num_kills < most; ++num_kills) {
      const absl::Duration moment = shortest + random.NextUniform() * (longest - shortest);
      if (PollUntil(moment, [&] { return !trainer.running(); })) return num_kills;
      KillAndRestart(servers[random.NextBelow(servers.size())]);
    }
    return most;
  }
  static std::string EndpointsOf(const Strings& servers,
                                 const std::string& setting = "rollout.endpoints") {
    return Concat(setting, "=[\"", absl::StrJoin(servers, "\",\""), "\"]");
  }
  Strings Settings(const std::string& run, const Strings& more, int64_t steps = 12) {
    return Joined({Concat("trainer.total_steps=", steps), "trainer.save_every=3",
                   "trainer.eval_every=5", RunDir(run)},
                  more);
  }
  Strings Arguments(const std::string& run, const Strings& more, int64_t steps = 12,
                    const Strings& flags = {}) {
    return TrainArguments(Settings(run, more, steps), flags);
  }
  void ExpectTrains(const std::string& run, const Strings& more, int64_t steps = 12) {
    ASSERT_TRUE(Runs(Arguments(run, more, steps)));
  }
  // Several ranks add the losses of their rows in another order than one does.
  void ExpectSameModel(const std::string& a, const std::string& b) {
    EXPECT_EQ(Losses(a).size(), Losses(b).size());
    EXPECT_FALSE(Losses(a).empty());
    EXPECT_EQ(ModelOf(a), ModelOf(b));
  }
  void ExpectSameResult(const std::string& a, const std::string& b) {
    ExpectSameLosses(a, b);
    ExpectSameModel(a, b);
  }
  // The requests that a server has answered.
  static std::string LogOf(const Worker& worker) { return worker.process->Errors(); }
};

}  // namespace taopd::testing
