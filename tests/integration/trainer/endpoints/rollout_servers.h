// A fixture with a teacher and servers of rollouts, which tests kill and start again.
#pragma once

#include <gmock/gmock.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/integration/trainer/ahead/killed_run.h"

namespace taopd::testing {

class TrainerEndpointsTest : public KilledRunTest {
 protected:
  void SetUp() override {
    KilledRunTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
  }

  // A server of rollouts, with a directory of its own for its files.
  struct Worker {
    TempDir dir;
    std::optional<TeacherProcess> process;
    int port = 0;
    std::string model_dir;  // empty: that of the fixture's student
    std::string endpoint() const { return Concat("grpc://127.0.0.1:", port); }
  };
  void Start(Worker* worker, const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--trainable", "--kv-cache-memory-bytes", "4MiB"};
    flags.insert(flags.end(), more.begin(), more.end());
    const std::string& model = worker->model_dir;
    worker->process.emplace(worker->dir, model.empty() ? dir_.File("student/model") : model,
                            worker->port, flags);
    worker->port = worker->process->grpc_port();
  }
  // Ends a server without a chance to say so, and starts it again on its port.
  void KillAndRestart(Worker* worker, const std::vector<std::string>& more = {}) {
    worker->process->process().Signal(SIGKILL);
    worker->process->process().Wait();
    Start(worker, more);
  }
  // Kills one of the servers again and again while the trainer runs, at moments that have nothing
  // to do with its steps, and starts it again. Returns the number of kills.
  int KillServersOf(Process& trainer, const std::vector<Worker*>& servers, int most,
                    absl::Duration shortest, absl::Duration longest) {
    RandomStream random(5);
    for (int num_kills = 0; num_kills < most; ++num_kills) {
      const absl::Duration moment = shortest + random.NextUniform() * (longest - shortest);
      if (PollUntil(moment, [&] { return !trainer.running(); })) return num_kills;
      KillAndRestart(servers[random.NextBelow(servers.size())]);
    }
    return most;
  }
  static std::string EndpointsOf(const std::vector<const Worker*>& workers,
                                 const std::string& setting = "rollout.endpoints") {
    std::string text;
    for (const Worker* worker : workers)
      text += Concat(text.empty() ? "" : ",", "\"", worker->endpoint(), "\"");
    return Concat(setting, "=[", text, "]");
  }
  std::vector<std::string> Settings(const std::string& run, const std::vector<std::string>& more,
                                    int64_t steps = 12) {
    std::vector<std::string> settings = {Concat("trainer.total_steps=", steps),
                                         "trainer.save_every=3", "trainer.eval_every=5",
                                         Concat("run.dir=", dir_.File(run))};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  void ExpectTrains(const std::string& run, const std::vector<std::string>& more,
                    int64_t steps = 12, const std::vector<std::string>& flags = {}) {
    std::string output;
    ASSERT_EQ(Train(teacher_->endpoint(), &output, Settings(run, more, steps), flags), 0) << output;
  }
  // The command of a run on several ranks.
  std::vector<std::string> Command(int64_t num_ranks, const std::string& run,
                                   const std::vector<std::string>& more, int64_t steps,
                                   const std::vector<std::string>& flags = {}) {
    return OnRanks(num_ranks,
                   TrainArguments(teacher_->endpoint(), Settings(run, more, steps), flags));
  }
  void ExpectTrainsOnRanks(int64_t num_ranks, const std::string& run,
                           const std::vector<std::string>& more, int64_t steps,
                           const std::vector<std::string>& flags = {}) {
    std::string output;
    ASSERT_EQ(RunProgram(Command(num_ranks, run, more, steps, flags), dir_.File("command.log"),
                         &output, absl::Seconds(240)),
              0)
        << output;
  }
  // Several ranks add the losses of their rows in another order than one does.
  void ExpectSameModel(const std::string& a, const std::string& b) {
    EXPECT_EQ(Losses(dir_.File(a)).size(), Losses(dir_.File(b)).size());
    EXPECT_FALSE(Losses(dir_.File(a)).empty());
    EXPECT_EQ(FilesOf(dir_.File(a + "/model")), FilesOf(dir_.File(b + "/model")));
  }
  void ExpectSameResult(const std::string& a, const std::string& b) {
    EXPECT_EQ(Losses(dir_.File(a)), Losses(dir_.File(b)));
    ExpectSameModel(a, b);
  }
  // The requests that a server has answered.
  static std::string LogOf(const Worker& worker) {
    return ReadFile(worker.dir.File("teacher.log"));
  }

  std::optional<TeacherProcess> teacher_;
};

}  // namespace taopd::testing
