// Tests of a disk that fills up at any moment of a run: nothing saved before is damaged, and the
// weights stay in memory and are written once there is room.

#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/integration/trainer/trainer_fixture.h"
#include "trainer/checkpoint/manifest.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMib = 1 << 20;

class FullDiskTest : public TrainerTest {
 protected:
  // Mounts a tmpfs of `size_bytes` at run.dir, which needs root. Returns false if that is not
  // possible.
  bool Mount(const std::string& run, int64_t size_bytes) {
    mounts_.push_back(dir_.File(run));
    std::filesystem::create_directories(mounts_.back());
    return mount("none", mounts_.back().c_str(), "tmpfs", 0, Concat("size=", size_bytes).c_str()) ==
           0;
  }
  // Changes the size of the newest one.
  void Resize(int64_t size_bytes) {
    ASSERT_EQ(mount("none", mounts_.back().c_str(), "tmpfs", MS_REMOUNT,
                    Concat("size=", size_bytes).c_str()),
              0);
  }
  void TearDown() override {
    for (const std::string& run : mounts_) umount2(run.c_str(), MNT_DETACH);
  }
  // Makes a student whose checkpoints take about 2.6 MB, more than the slack of a size in whole
  // megabytes.
  void MakeStudent() {
    MakeModel("larger", {{"hidden_size", 96}, {"intermediate_size", 192}, {"head_dim", 24}});
  }
  Strings CommandOf(const std::string& run, const Strings& more = {}, const Strings& flags = {}) {
    const Strings settings = {"student.model=" + dir_.File("larger/model"), RunDir(run),
                              "trainer.total_steps=4", "trainer.save_every=1", "eval.measure=none"};
    return Command(TrainArguments(Joined(settings, more), flags));
  }
  // Expects every checkpoint under its final name to be complete and undamaged. Returns their
  // number.
  size_t ExpectIntact(const std::string& run) {
    for (const int64_t step : Checkpoints(run))
      EXPECT_TRUE(VerifyCheckpoint(CheckpointOf(run, step), step, true).ok()) << step;
    return Checkpoints(run).size();
  }
  static bool IsWaiting(Process& process) {
    EXPECT_TRUE(AwaitOutput("the run waits until it can write its state", process));
    return process.running();
  }

  Strings mounts_;
};

TEST_F(FullDiskTest, EverySizeOfTheDiskEndsWithAllWeights) {
  MakeStudent();
  ASSERT_EQ(RunCommand(CommandOf("whole")), 0) << output_;
  const std::string weights = WeightsOf("whole");
  const int64_t stride = std::getenv("TAOPD_ALL_DISK_SIZES") != nullptr ? kMib / 4 : 2 * kMib;
  int num_refused = 0, num_waited = 0, num_done = 0;
  for (int64_t size = kMib; num_done < 2; size += stride) {
    const std::string run = Concat("run", size);
    if (!Mount(run, size)) GTEST_SKIP() << "no tmpfs can be mounted here";
    Process process(CommandOf(run), dir_.File("run.log"));
    if (IsWaiting(process)) {
      ++num_waited;
      ExpectIntact(run);
      Resize(size + 32 * kMib);
      ASSERT_EQ(process.Wait(), 0) << size << process.Output();
    } else if (process.Wait() == 74) {
      ++num_refused;
      EXPECT_THAT(process.Output(), HasSubstr("a checkpoint takes")) << size;
      continue;
    } else {
      ++num_done;
    }
    ASSERT_EQ(process.Wait(), 0) << size << process.Output();
    EXPECT_GE(ExpectIntact(run), 1u);
    EXPECT_EQ(WeightsOf(run), weights) << size;
    EXPECT_EQ(Losses(run).size(), 4u) << size;
    ASSERT_LT(size, 64 * kMib) << "never enough";
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_GT(num_waited, 0);
}

// The disk fills up during the run, when there is a checkpoint.
TEST_F(FullDiskTest, ARunThatIsGivenUpSaysWhatIsSaved) {
  MakeStudent();
  if (!Mount("run", 64 * kMib)) GTEST_SKIP() << "no tmpfs can be mounted here";
  const std::string run = dir_.File("run");
  ASSERT_EQ(RunCommand(CommandOf("run", {"trainer.total_steps=2"})), 0) << output_;
  const auto before = FilesOf(run + "/checkpoints");
  std::filesystem::remove_all(run + "/model");
  // Leaves room for records that is less than a checkpoint.
  WriteFile(run + "/ballast", std::string(57 * kMib, 'x'));
  Process second(CommandOf("run", {"trainer.disk_plan=off"}, {"--resume"}),
                 dir_.File("second.log"));
  ASSERT_TRUE(IsWaiting(second)) << second.Output();
  EXPECT_THAT(second.Output(), HasSubstr("nothing newer than step 2 is saved"));
  EXPECT_EQ(FilesOf(run + "/checkpoints"), before);
  second.Signal(SIGTERM);
  EXPECT_EQ(second.Wait(), 74) << second.Output();
  EXPECT_THAT(second.Output(), HasSubstr("the checkpoint of step 4 is given up; nothing newer "
                                         "than step 2 is saved"));
  EXPECT_EQ(FilesOf(run + "/checkpoints"), before);
  std::filesystem::remove(run + "/ballast");
  EXPECT_EQ(RunCommand(CommandOf("run", {}, {"--resume"})), 0) << output_;
}

// This works without root: a limit of the file size, which records and checkpoints exceed, stands
// for the disk.
TEST_F(FullDiskTest, AStopWaitsForRoomToo) {
  MakeStudent();
  const Strings limited = {"/bin/sh", "-c", "ulimit -S -f 200; exec \"$@\"", "sh"};
  Process process(Joined(limited, CommandOf("run", {"trainer.total_steps=100000"})),
                  dir_.File("run.log"));
  ASSERT_TRUE(AwaitOutput("the weights stay in memory", process));
  process.Signal(SIGTERM);
  ASSERT_TRUE(IsWaiting(process)) << process.Output();
  const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_FSIZE, &room, nullptr), 0);
  EXPECT_EQ(process.Wait(), 75) << process.Output();
  EXPECT_EQ(ExpectIntact("run"), 1u);
  const int64_t step = NewestCheckpoint("run");
  EXPECT_EQ(static_cast<int64_t>(Losses("run").size()), step) << "no record is lost";
}

}  // namespace
}  // namespace taopd::testing
