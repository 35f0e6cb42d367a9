// Tests that a new run replaces an old one completely or not at all, whatever ends the process
// meanwhile.
#include "trainer/run/run_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

namespace fs = std::filesystem;

const StartMode kNew, kResume{.resume = true}, kOverwrite{.overwrite = true};
const StartMode kResumeOrStart{.resume = true, .may_start = true};

const CheckpointOptions kKeepTwo{.keep_last = 2};

using Files = std::map<std::string, std::string>;

Files FilesOf(const std::string& dir) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    const std::string name = entry.path().lexically_relative(dir).string();
    if (entry.is_regular_file() && name != "run.lock") files[name] = ReadFile(entry.path());
  }
  return files;
}

void WriteFiles(const std::string& dir, const Files& files) {
  for (const auto& [name, content] : files) {
    fs::create_directories(fs::path(dir + "/" + name).parent_path());
    WriteFile(dir + "/" + name, content);
  }
}

const Files kUserFiles = {{"notes.txt", "mine"}, {"data/rows.jsonl", "{}"}};
const Files kRunFiles = {{"checkpoints/step-000002/state.json", "{}"},
                         {"config.yaml", "old"},
                         {"evaluation/after.json", "1"},
                         {"fingerprint", "f"},
                         {"metrics.jsonl", "{\"step\": 1}\n"},
                         {"model/config.json", "{}"},
                         {"report.html", "<html>"},
                         {"samples.jsonl", "{}\n"},
                         {"summary.json", "{}"},
                         {"tensorboard/events", "e"}};

Files Both() {
  Files both = kUserFiles;
  both.insert(kRunFiles.begin(), kRunFiles.end());
  return both;
}

class RunDirectoryTest : public ::testing::Test {
 protected:
  // A finished run with a user's files next to it.
  void SetUp() override {
    ASSERT_OK(RunLock::Acquire(dir()));  // leaves run.lock
    WriteFiles(dir(), Both());
  }
  std::string dir() const { return temp_.File("run"); }

  // Runs `work` in a process that ends without destructors, as after SIGKILL.
  template <typename Fn>
  void InKilledProcess(Fn work, const StartMode& mode = kOverwrite) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto directory = RunDirectory::Open(dir(), mode, kKeepTwo);
      const bool moved = directory.ok() && (*directory)->MoveOldRunAside().ok();
      if (moved) work();
      _exit(moved ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
  }

  TempDir temp_;
};

TEST_F(RunDirectoryTest, AnOldRunIsReplacedAndTheUsersFilesStay) {
  {
    ASSERT_OK_AND_ASSIGN(const auto directory, RunDirectory::Open(dir(), kOverwrite, kKeepTwo));
    EXPECT_FALSE(directory->checkpoint());
    EXPECT_EQ(FilesOf(dir()), Both()) << "opening changes nothing";
    ASSERT_OK(directory->MoveOldRunAside());
    WriteFile(dir() + "/config.yaml", "new");
    directory->DeleteOldRun();
  }
  Files expected = kUserFiles;
  expected["config.yaml"] = "new";
  EXPECT_EQ(FilesOf(dir()), expected);
}

TEST_F(RunDirectoryTest, NothingToResumeIsRefusedUnlessARunMayStart) {
  fs::remove_all(dir() + "/checkpoints");
  const Files before = FilesOf(dir());
  EXPECT_ERROR(RunDirectory::Open(dir(), kResume, kKeepTwo), kFailedPrecondition, "--resume=auto");
  EXPECT_ERROR(RunDirectory::Open(temp_.File("nowhere"), kResume, kKeepTwo), kFailedPrecondition,
               "nothing to resume");
  EXPECT_FALSE(fs::exists(temp_.File("nowhere"))) << "a refusal leaves something behind";
  EXPECT_EQ(FilesOf(dir()), before);
  ASSERT_OK(RunDirectory::Open(temp_.File("fresh"), kResumeOrStart, kKeepTwo));
}

// The files of an earlier run are kept under another name.
TEST_F(RunDirectoryTest, ARunThatStartsForWantOfACheckpointDeletesNothing) {
  fs::remove_all(dir() + "/checkpoints");
  WriteFiles(dir(), {{"bad_batches/step-1.json", "{}"}, {"events.jsonl", "{}\n"}});
  Files earlier = FilesOf(dir());
  const Files later = {
      {"config.yaml", "new"}, {"metrics.jsonl", "{}\n"}, {"rollouts.jsonl", "{}\n"}};
  Files expected = kUserFiles;
  for (int number = 1; number <= 2; ++number) {
    ASSERT_OK_AND_ASSIGN(const auto directory, RunDirectory::Open(dir(), kResumeOrStart, kKeepTwo));
    ASSERT_OK(directory->MoveOldRunAside());
    WriteFiles(dir(), later);
    directory->DeleteOldRun();
    for (const auto& [name, content] : earlier) {
      if (!kUserFiles.contains(name)) expected[Concat("earlier-", number, "/", name)] = content;
    }
    Files now = expected;
    earlier = later;
    now.insert(earlier.begin(), earlier.end());
    EXPECT_EQ(FilesOf(dir()), now) << number;
  }
}

// An aborted start leaves nothing to keep.
TEST_F(RunDirectoryTest, EmptyFilesAreNotKept) {
  fs::remove_all(dir());
  ASSERT_OK(RunLock::Acquire(dir()));
  WriteFiles(dir(), {{"config.yaml", "old"}, {"metrics.jsonl", ""}, {"tensorboard/e", "e"}});
  ASSERT_OK_AND_ASSIGN(const auto directory, RunDirectory::Open(dir(), kResumeOrStart, kKeepTwo));
  ASSERT_OK(directory->MoveOldRunAside());
  WriteFiles(dir(), {{"config.yaml", "new"}});
  directory->DeleteOldRun();
  EXPECT_EQ(FilesOf(dir()), (Files{{"config.yaml", "new"}}));
}

TEST_F(RunDirectoryTest, ACrashOfARunThatKeepsTheOldOneLosesNothing) {
  fs::remove_all(dir() + "/checkpoints");
  const Files before = FilesOf(dir());
  for (const bool has_begun : {false, true}) {
    const auto begin = [&] {
      if (has_begun) WriteFile(dir() + "/config.yaml", "new");
    };
    InKilledProcess(begin, kResumeOrStart);
    ASSERT_OK(RunDirectory::Open(dir(), kOverwrite, kKeepTwo));
    Files expected = has_begun ? kUserFiles : before;
    if (has_begun) expected["config.yaml"] = "new";
    for (const auto& [name, content] : before) {
      if (has_begun && !kUserFiles.contains(name)) expected["earlier-1/" + name] = content;
    }
    EXPECT_EQ(FilesOf(dir()), expected) << has_begun;
  }
}

TEST_F(RunDirectoryTest, ARunThatDoesNotBeginLeavesTheOldOne) {
  {
    ASSERT_OK_AND_ASSIGN(const auto directory, RunDirectory::Open(dir(), kOverwrite, kKeepTwo));
    ASSERT_OK(directory->MoveOldRunAside());
    EXPECT_FALSE(fs::exists(dir() + "/config.yaml"));
    ASSERT_OK(directory->Checkpoints());
    WriteFiles(dir(), {{"metrics.jsonl", ""}, {"tensorboard/new", ""}});
  }
  EXPECT_EQ(FilesOf(dir()), Both());
}

TEST_F(RunDirectoryTest, AfterACrashBeforeTheNewRunTheOldOneIsPutBackAndInItTheNewOneStays) {
  InKilledProcess([&] { WriteFiles(dir(), {{"metrics.jsonl", ""}, {"tensorboard/new", ""}}); });
  EXPECT_NE(FilesOf(dir()), Both());
  EXPECT_ERROR(RunDirectory::Open(dir(), kNew, kKeepTwo), kFailedPrecondition,
               "holds a run already");
  EXPECT_EQ(FilesOf(dir()), Both());
  InKilledProcess([&] { WriteFile(dir() + "/config.yaml", "new"); });
  ASSERT_OK(RunDirectory::Open(dir(), kNew, kKeepTwo));
  Files expected = kUserFiles;
  expected["config.yaml"] = "new";
  EXPECT_EQ(FilesOf(dir()), expected);
}

TEST_F(RunDirectoryTest, AfterACrashHalfWayTheOldOneIsPutBack) {
  // config.yaml goes first.
  for (const char* name : {"config.yaml", "checkpoints", "metrics.jsonl"}) {
    fs::create_directories(dir() + "/.replaced");
    fs::rename(dir() + "/" + name, dir() + "/.replaced/" + name);
    EXPECT_ERROR(RunDirectory::Open(dir(), kNew, kKeepTwo), kFailedPrecondition,
                 "holds a run already");
    EXPECT_EQ(FilesOf(dir()), Both()) << name;
    fs::create_directories(dir() + "/.replaced");
    fs::rename(dir() + "/config.yaml", dir() + "/.replaced/config.yaml");
  }
}

TEST_F(RunDirectoryTest, AnEmptyRecordNeedsNoOverwrite) {
  fs::remove_all(dir() + "/checkpoints");
  WriteFile(dir() + "/metrics.jsonl", "");
  EXPECT_OK(RunDirectory::Open(dir(), kNew, kKeepTwo));
  EXPECT_OK(RunDirectory::Open(dir(), kResumeOrStart, kKeepTwo));
}

// Without the files that only a run has, a directory called model/ is somebody's model.
TEST_F(RunDirectoryTest, AForeignDirectoryIsRefused) {
  for (const char* name : {"model/config.json", "config.yaml", "checkpoints/step-1"}) {
    const TempDir foreign;
    WriteFiles(foreign.path(), {{name, "mine"}});
    for (const StartMode& mode : {kNew, kResume, kOverwrite}) {
      EXPECT_ERROR(RunDirectory::Open(foreign.path(), mode, kKeepTwo), kFailedPrecondition,
                   "which no run has made");
      EXPECT_ERROR(RunDirectory::Check(foreign.path(), mode), kFailedPrecondition,
                   "which no run has made");
      EXPECT_EQ(FilesOf(foreign.path()), Files({{name, "mine"}}));
      EXPECT_FALSE(fs::exists(foreign.File("run.lock")));
    }
  }
}

TEST_F(RunDirectoryTest, ADirectoryInUseIsRefused) {
  ASSERT_OK_AND_ASSIGN(auto lock, RunLock::Acquire(dir()));
  const std::string holder = Concat(dir(), " is in use by process ", getpid(), " on ");
  EXPECT_ERROR(RunDirectory::Open(dir(), kOverwrite, kKeepTwo), kFailedPrecondition, holder);
  EXPECT_ERROR(RunDirectory::Check(dir(), kOverwrite), kFailedPrecondition, holder);
  EXPECT_OK(RunLock::Acquire(temp_.File("other")));
  lock.reset();
  EXPECT_OK(RunDirectory::Open(dir(), kOverwrite, kKeepTwo));
}

TEST_F(RunDirectoryTest, AnotherProcessHoldsTheLockUntilItIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto lock = RunLock::Acquire(dir());
    _exit(lock.ok() && write(ready[1], "y", 1) == 1 ? pause() : 1);
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  EXPECT_ERROR(RunLock::Acquire(dir()), kFailedPrecondition,
               Concat("in use by process ", holder, " on "));
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_OK(RunLock::Acquire(dir()));
}

// Check refuses what Open refuses, and leaves no trace.
TEST_F(RunDirectoryTest, ACheckChangesNothing) {
  const TempDir parent;
  EXPECT_OK(RunDirectory::Check(parent.File("new/run"), kNew));
  EXPECT_TRUE(fs::is_empty(parent.path()));
  WriteFile(parent.File("file"), "");
  EXPECT_ERROR(RunDirectory::Check(parent.File("file/run"), kNew), kFailedPrecondition, "cannot");
  EXPECT_ERROR(RunDirectory::Check(dir(), kNew), kFailedPrecondition, "holds a run already");
  EXPECT_OK(RunDirectory::Check(dir(), kOverwrite));
  EXPECT_EQ(FilesOf(dir()), Both());
  InKilledProcess([] {});
  const Files crashed = FilesOf(dir());
  EXPECT_ERROR(RunDirectory::Check(dir(), kNew), kFailedPrecondition, "holds a run already");
  EXPECT_EQ(FilesOf(dir()), crashed);
}

}  // namespace
}  // namespace taopd::testing
