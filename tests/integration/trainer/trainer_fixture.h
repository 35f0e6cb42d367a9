// The fixture of tests of the two real programs on 127.0.0.1, with a trained teacher (stories260K),
// a small random student made by `taopd-trainer sft`, and prompts as token ids.
#pragma once

#include <gmock/gmock.h>
#include <signal.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/integration/teacher/teacher_process.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

class ControlClient;

// Arguments of a program, or settings, each section.key=value.
using Strings = std::vector<std::string>;

// Returns the words of a text, such as "trainer.total_steps=2 eval.measure=none".
Strings Words(const std::string& text);
// Returns the items of both lists.
Strings Joined(Strings first, const Strings& second);

std::string ModelConfigText();

// An endpoint at which no teacher answers, as a setting.
inline constexpr char kNobody[] = "teacher.endpoints=[grpc://127.0.0.1:1]";

// A teacher that serves a model.
class ServingTeacher : public TeacherProcess {
 public:
  // If `grpc_port` is 0, the kernel picks the port.
  explicit ServingTeacher(const std::string& model_dir, const Strings& flags = {},
                          int grpc_port = 0)
      : TeacherProcess(
            Joined({"--model", model_dir, "--grpc-port", Concat(grpc_port), "--num-threads", "1"},
                   flags)) {
    EXPECT_TRUE(WaitUntilReady()) << Errors();
  }
};

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // ---- Files: a relative path is one in the test's directory ----
  // Writes the base configuration followed by `more`.
  void WriteTrainConfig(const std::string& more);
  // Makes the directory "tokenizer" with 271 tokens, a chat template and generation defaults.
  void WriteTokenizer();
  // Makes the small student with that tokenizer. Returns its directory. REQUIRES: WriteTokenizer
  // was called.
  std::string WriteTextStudent();
  // Makes a random model with changes of the small student's config.json, by one step of a
  // supervised run `run`.
  void MakeModel(const std::string& run, const nlohmann::json& changes,
                 const Strings& settings = {});
  // Makes the quickstart's data in "data", and "quick_teacher" and "quick_student", which have
  // learned a little, with more settings in words.
  void MakeQuickstart(const std::string& settings);
  // Writes problems whose answers are numbers. Returns the setting that names them.
  std::string WriteProblems(int64_t count);
  // Makes the text student, and problems whose grader is `regex`, in "rows.jsonl". Returns settings
  // that train on rewards alone, without a teacher. REQUIRES: WriteTokenizer was not called.
  Strings RewardSettings();
  std::string FileSetting(const std::string& setting, const std::string& name) {
    return Concat(setting, "=[", dir_.File(name), "]");
  }
  // Changes one bit in the middle of a file.
  static void Damage(const std::string& path);

  // ---- Programs ----
  // The teacher that the test has started. Otherwise one that the tests of a process share, which
  // starts when it is first asked for; a test that ends or stops its teacher starts its own.
  ServingTeacher& teacher();
  // Starts the test's own teacher.
  void StartTeacher(const std::string& model_dir, const Strings& flags = {}, int grpc_port = 0) {
    teacher_.emplace(model_dir, flags, grpc_port);
  }
  static std::string Endpoints(const std::string& urls) {
    return "teacher.endpoints=[" + urls + "]";
  }
  std::string FromTeacher() { return Endpoints(teacher().endpoint()); }
  std::string RunDir(const std::string& run) { return "run.dir=" + dir_.File(run); }

  // Returns the command of taopd-trainer with these arguments, on several ranks if there are more.
  static Strings Command(Strings arguments, int64_t num_ranks = 1);
  // Adds settings, and then flags, to arguments.
  static Strings With(Strings arguments, const Strings& settings, const Strings& flags = {});
  // Runs a command to its end. Returns the exit code; output_ has what it has written.
  int RunCommand(const Strings& command) {
    return RunProgram(command, dir_.File("command.log"), &output_, absl::Seconds(300));
  }
  int Run(const Strings& arguments, int64_t num_ranks = 1) {
    return RunCommand(Command(arguments, num_ranks));
  }
  // The fixture's teacher teaches, unless a setting of the section teacher names another one.
  Strings TrainArguments(const Strings& settings = {}, const Strings& flags = {});
  int Train(const Strings& settings = {}, const Strings& flags = {}, int64_t num_ranks = 1) {
    return Run(TrainArguments(settings, flags), num_ranks);
  }
  // The same for what must succeed.
  ::testing::AssertionResult Runs(const Strings& arguments, int64_t num_ranks = 1) {
    const int code = Run(arguments, num_ranks);
    if (code == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "exit code " << code << ": " << output_;
  }
  ::testing::AssertionResult Trains(const Strings& settings = {}, const Strings& flags = {},
                                    int64_t num_ranks = 1) {
    return Runs(TrainArguments(settings, flags), num_ranks);
  }
  Strings SftArguments(const Strings& settings = {}, const Strings& flags = {}) {
    return With({"sft", "--config", dir_.File("sft.yaml")}, settings, flags);
  }
  Strings PlanArguments(const Strings& settings, const Strings& flags = {}) {
    return With({"plan", "--config", dir_.File("train.yaml")}, settings, flags);
  }
  // Evaluates with the settings and flags of an evaluation of the distance to the teacher.
  double DistanceToTeacher(const Strings& settings, const Strings& flags = {});
  // Expects the command to end with `code` and to say `message`.
  void ExpectFails(const Strings& arguments, int code, const std::string& message) {
    EXPECT_EQ(Run(arguments), code) << output_;
    EXPECT_THAT(output_, HasSubstr(message));
  }
  void ExpectTrainFails(const Strings& settings, int code, const std::string& message,
                        const Strings& flags = {}) {
    ExpectFails(TrainArguments(settings, flags), code, message);
  }

  // ---- Results ----
  // Returns the hash of every file below `dir`, by relative path.
  static std::map<std::string, std::string> FilesOf(const std::string& dir);
  static std::string FileHash(const std::string& path);
  std::map<std::string, std::string> ModelOf(const std::string& run) {
    return FilesOf(dir_.File(run + "/model"));
  }
  std::string WeightsOf(const std::string& run) {
    return FileHash(dir_.File(run + "/model/model.safetensors"));
  }
  nlohmann::json ReadJson(const std::string& name) {
    return nlohmann::json::parse(ReadFile(dir_.File(name)));
  }
  bool Exists(const std::string& name) { return std::filesystem::exists(dir_.File(name)); }
  // Returns the whole lines of a JSON Lines file, none if it is absent.
  std::vector<nlohmann::json> Lines(const std::string& name);
  // Returns the loss of each step of the run `run`.
  std::vector<double> Losses(const std::string& run);
  // Expects the losses of two runs to be equal, or nearly so.
  void ExpectSameLosses(const std::string& a, const std::string& b, double relative = 0);
  // Returns the newest value of a metric, or NaN if there is none.
  double LastMetric(const std::string& run, const std::string& name);
  // Returns the evaluations of a run in the order of their records, without their time.
  std::vector<nlohmann::json> Evaluations(const std::string& run);
  // Returns the lines of samples.jsonl, sorted.
  std::multiset<std::string> Samples(const std::string& run);
  std::vector<nlohmann::json> RollBacks(const std::string& run);
  std::set<int64_t> Checkpoints(const std::string& run);
  // Returns the step of the newest checkpoint, or -1 if there is none.
  int64_t NewestCheckpoint(const std::string& run);
  std::string CheckpointOf(const std::string& run, int64_t step);

  // Pauses a run by its page, saves a checkpoint during the pause, and lets the run go on. Returns
  // the step of the pause.
  int64_t PauseSaveAndGoOn(const std::string& run, ControlClient& page);

  // ---- Runs that end too early ----
  // Waits until there is a checkpoint of `step` or later, or the program has ended.
  bool AwaitCheckpoint(const std::string& run, int64_t step, Process& trainer);
  static bool AwaitOutput(const std::string& text, Process& program);
  // Returns the number of kills: `otherwise`, or TAOPD_NUM_KILLS (the ctest entries with the label
  // slow set it).
  static int64_t NumKills(int64_t otherwise) {
    return NumberFromEnvironment("TAOPD_NUM_KILLS", otherwise);
  }
  // Returns the length of a run for KillAndResume.
  static int64_t StepsOfKilledRun() { return kStepsPerKill * (NumKills(2) + 1); }
  // Runs the arguments to their end. Returns how long that took.
  absl::Duration TimeOf(const Strings& arguments);
  // Starts the arguments (with --resume=auto) for the run `run` and kills the trainer or one of its
  // ranks, NumKills(2) times, and then lets the run end. An undisturbed run takes `whole`.
  // TAOPD_KILL_SEED is the seed of the moments of the kills.
  void KillAndResume(const Strings& arguments, const std::string& run, absl::Duration whole,
                     int64_t num_ranks = 1);

  static constexpr int64_t kStepsPerKill = 8;
  TempDir dir_;
  const std::string stories_ = SourcePath("deploy/examples/stories260K");
  std::optional<ServingTeacher> teacher_;
  std::string output_;  // of the last program
};

}  // namespace taopd::testing
