// Tests of a disk that fills up at any moment of a run: nothing saved before is damaged, and the
// weights stay in memory and are written once there is room.

#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/integration/trainer/trainer_fixture.h"
#include "trainer/checkpoint/manifest.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;

class FullDiskTest : public TrainerTest {
 protected:
  // Mounts a tmpfs of `size_bytes` at run.dir, which needs root. Returns false if that is not
  // possible.
  bool Mount(const std::string& run, int64_t size_bytes) {
    std::filesystem::create_directories(run);
    mounts_.push_back(run);
    return mount("none", run.c_str(), "tmpfs", 0, Concat("size=", size_bytes).c_str()) == 0;
  }
  void Resize(const std::string& run, int64_t size_bytes) {
    ASSERT_EQ(mount("none", run.c_str(), "tmpfs", MS_REMOUNT, Concat("size=", size_bytes).c_str()),
              0);
  }
  void TearDown() override {
    for (const std::string& run : mounts_) umount2(run.c_str(), MNT_DETACH);
  }
  // Makes a student whose checkpoints take about 2.6 MB, more than the slack of a size in whole
  // megabytes.
  void MakeStudent() {
    auto config = nlohmann::json::parse(ModelConfigText());
    config["hidden_size"] = 96;
    config["intermediate_size"] = 192;
    config["head_dim"] = 24;
    WriteFile(dir_.File("larger.json"), config.dump());
    std::string output;
    ASSERT_EQ(Run({"sft", "--config", dir_.File("sft.yaml"), "--set",
                   Concat("model.config=", dir_.File("larger.json")), "--set",
                   Concat("run.dir=", dir_.File("larger")), "--set", "trainer.total_steps=1"},
                  &output),
              0)
        << output;
  }
  std::vector<std::string> Arguments(const std::string& endpoint, const std::string& run,
                                     const std::vector<std::string>& more = {},
                                     const std::vector<std::string>& flags = {}) {
    std::vector<std::string> settings = {Concat("student.model=", dir_.File("larger/model")),
                                         Concat("run.dir=", run), "trainer.total_steps=4",
                                         "trainer.save_every=1", "eval.measure=none"};
    settings.insert(settings.end(), more.begin(), more.end());
    std::vector<std::string> arguments = TrainArguments(endpoint, settings, flags);
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    return arguments;
  }
  // Expects every checkpoint under its final name to be complete and undamaged. Returns their
  // number.
  static int ExpectIntact(const std::string& run) {
    int num_checkpoints = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run + "/checkpoints", error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step-")) continue;
      EXPECT_TRUE(VerifyCheckpoint(entry.path().string(), std::stoll(name.substr(5)), true).ok())
          << name;
      ++num_checkpoints;
    }
    return num_checkpoints;
  }
  static bool Waits(Process& process) {
    return process.Output().find("the run waits until it can write its state") != std::string::npos;
  }

  std::vector<std::string> mounts_;
};

TEST_F(FullDiskTest, EverySizeOfTheDiskEndsWithAllWeights) {
  MakeStudent();
  TeacherProcess teacher(dir_, teacher_model_);
  Process whole(Arguments(teacher.endpoint(), dir_.File("whole")), dir_.File("whole.log"));
  ASSERT_EQ(whole.Wait(), 0) << whole.Output();
  const std::string weights = FileHash(dir_.File("whole/model/model.safetensors"));
  const int64_t stride = std::getenv("TAOPD_ALL_DISK_SIZES") != nullptr ? kMib / 4 : 2 * kMib;
  int num_refused = 0, num_waited = 0, num_done = 0;
  for (int64_t size = kMib; num_done < 2; size += stride) {
    const std::string run = dir_.File(Concat("run", size));
    if (!Mount(run, size)) GTEST_SKIP() << "no tmpfs can be mounted here";
    Process process(Arguments(teacher.endpoint(), run), dir_.File("run.log"));
    ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return !process.running() || Waits(process); }));
    if (process.running()) {
      ++num_waited;
      ExpectIntact(run);
      Resize(run, size + 32 * kMib);
      ASSERT_EQ(process.Wait(), 0) << size << process.Output();
    } else if (process.Wait() == 74) {
      ++num_refused;
      EXPECT_THAT(process.Output(), HasSubstr("a checkpoint takes")) << size;
      continue;
    } else {
      ++num_done;
    }
    ASSERT_EQ(process.Wait(), 0) << size << process.Output();
    EXPECT_GE(ExpectIntact(run), 1);
    EXPECT_EQ(FileHash(run + "/model/model.safetensors"), weights) << size;
    EXPECT_EQ(Losses(run).size(), 4u) << size;
    ASSERT_LT(size, 64 * kMib) << "never enough";
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_GT(num_waited, 0);
}

// The disk fills up during the run, when there is a checkpoint.
TEST_F(FullDiskTest, ARunThatIsGivenUpSaysWhatIsSaved) {
  MakeStudent();
  const std::string run = dir_.File("run");
  if (!Mount(run, 64 * kMib)) GTEST_SKIP() << "no tmpfs can be mounted here";
  TeacherProcess teacher(dir_, teacher_model_);
  Process first(Arguments(teacher.endpoint(), run, {"trainer.total_steps=2"}),
                dir_.File("first.log"));
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  const auto before = FilesOf(run + "/checkpoints");
  std::filesystem::remove_all(run + "/model");
  // Leaves room for records that is less than a checkpoint.
  WriteFile(run + "/ballast", std::string(57 * kMib, 'x'));
  Process second(Arguments(teacher.endpoint(), run, {"trainer.disk_plan=off"}, {"--resume"}),
                 dir_.File("second.log"));
  const auto is_waiting = [&] { return !second.running() || Waits(second); };
  ASSERT_TRUE(PollUntil(absl::Seconds(60), is_waiting));
  ASSERT_TRUE(second.running()) << second.Output();
  EXPECT_THAT(second.Output(), HasSubstr("nothing newer than step 2 is saved"));
  EXPECT_EQ(FilesOf(run + "/checkpoints"), before);
  second.Signal(SIGTERM);
  EXPECT_EQ(second.Wait(), 74) << second.Output();
  EXPECT_THAT(second.Output(), HasSubstr("the checkpoint of step 4 is given up; nothing newer "
                                         "than step 2 is saved"));
  EXPECT_EQ(FilesOf(run + "/checkpoints"), before);
  std::filesystem::remove(run + "/ballast");
  Process third(Arguments(teacher.endpoint(), run, {}, {"--resume"}), dir_.File("third.log"));
  EXPECT_EQ(third.Wait(), 0) << third.Output();
}

// This works without root: a limit of the file size, which records and checkpoints exceed, stands
// for the disk.
TEST_F(FullDiskTest, AStopWaitsForRoomToo) {
  MakeStudent();
  TeacherProcess teacher(dir_, teacher_model_);
  std::vector<std::string> arguments = {"/bin/sh", "-c", "ulimit -S -f 200; exec \"$@\"", "sh"};
  const auto train =
      Arguments(teacher.endpoint(), dir_.File("run"), {"trainer.total_steps=100000"});
  arguments.insert(arguments.end(), train.begin(), train.end());
  Process process(arguments, dir_.File("run.log"));
  const auto has_failed = [&] {
    return !process.running() ||
           process.Output().find("the weights stay in memory") != std::string::npos;
  };
  ASSERT_TRUE(PollUntil(absl::Seconds(60), has_failed));
  process.Signal(SIGTERM);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return !process.running() || Waits(process); }));
  ASSERT_TRUE(process.running()) << process.Output();
  const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_FSIZE, &room, nullptr), 0);
  EXPECT_EQ(process.Wait(), 75) << process.Output();
  EXPECT_EQ(ExpectIntact(dir_.File("run")), 1);
  const int64_t step = NewestCheckpoint("run");
  EXPECT_EQ(static_cast<int64_t>(Losses(dir_.File("run")).size()), step) << "no record is lost";
}

}  // namespace
}  // namespace taopd::testing
