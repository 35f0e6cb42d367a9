#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/manifest.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "common/io/file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/checkpoint/example_checkpoint.h"

namespace taopd::testing {
namespace {

namespace fs = std::filesystem;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Open({}); }
  void Open(const CheckpointOptions& options) {
    ASSERT_OK_AND_ASSIGN(store_, CheckpointStore::Open(dir(), options));
  }
  absl::StatusOr<std::string> Save(int64_t step) {
    return store_->Save(step, [&](const std::string& to) { return WriteExample(to, step); });
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto all = store_->List();
    EXPECT_OK(all);
    for (const CheckpointRef& ref : *all) steps.push_back(ref.step);
    return steps;
  }
  // Returns -1 if there is none.
  int64_t NewestStep() {
    const auto newest = store_->Newest();
    EXPECT_OK(newest);
    if (!newest.ok() || !newest->has_value()) return -1;
    EXPECT_TRUE(IsExample((*newest)->path, (*newest)->step));
    return (*newest)->step;
  }
  std::string dir() const { return temp_.File("checkpoints"); }
  std::string Path(const std::string& name) const { return dir() + "/" + name; }

  TempDir temp_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(CheckpointStoreTest, SavedIsFoundAgain) {
  EXPECT_EQ(NewestStep(), -1);
  ASSERT_OK_AND_ASSIGN(const std::string path, Save(120));
  EXPECT_EQ(path, Path("step-000120"));
  EXPECT_EQ(NewestStep(), 120);
  // Another process finds the same checkpoint.
  Open({});
  EXPECT_EQ(NewestStep(), 120);
  EXPECT_EQ(*ListDirectory(dir()), std::vector<std::string>{"step-000120"});
}

TEST_F(CheckpointStoreTest, ListRisesAndIgnoresWhatIsNoCheckpoint) {
  Open({.keep_last = 10});
  for (const int64_t step : {1000000, 5, 20}) ASSERT_OK(Save(step));
  for (const char* name : {"step-", "step-5", "step-0000021x", "step--00001", "other"}) {
    fs::create_directories(Path(name));
  }
  WriteFile(Path("step-000030"), "a file");
  EXPECT_EQ(Steps(), (std::vector<int64_t>{5, 20, 1000000}));
}

TEST_F(CheckpointStoreTest, SavingAgainReplacesNothing) {
  ASSERT_OK(Save(3));
  bool is_called = false;
  const auto again = store_->Save(3, [&](const std::string&) {
    is_called = true;
    return absl::OkStatus();
  });
  ASSERT_OK(again);
  EXPECT_EQ(*again, Path("step-000003"));
  EXPECT_FALSE(is_called);
}

TEST_F(CheckpointStoreTest, DamagedStepIsMovedAsideWhenSavedAnew) {
  ASSERT_OK(Save(3));
  WriteFile(Path("step-000003/state.json"), "damaged");
  ASSERT_OK(Save(3));
  EXPECT_EQ(NewestStep(), 3);
  EXPECT_EQ(ReadFile(Path("damaged-step-000003-1/state.json")), "damaged");
}

// A new checkpoint at the path of a damaged one counts like any other.
TEST_F(CheckpointStoreTest, RetentionForgetsDamageThatIsMovedOrDeleted) {
  for (const int64_t step : {3, 4}) {
    ASSERT_OK(Save(step));
    WriteFile(Path(Concat("step-00000", step, "/state.json")), "damaged");
  }
  EXPECT_ERROR(store_->Newest(), kDataLoss, "all 2 checkpoints");
  ASSERT_OK(store_->DeleteAfter(3));
  for (int64_t step = 3; step <= 6; ++step) ASSERT_OK(Save(step));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{5, 6}));
}

TEST_F(CheckpointStoreTest, FailedWriteLeavesTheOlder) {
  ASSERT_OK(Save(1));
  const auto failed = store_->Save(2, [&](const std::string& to) {
    EXPECT_OK(WriteExample(to, 2));
    return absl::ResourceExhaustedError("no space left");
  });
  EXPECT_ERROR(failed, kResourceExhausted, "checkpoint of step 2: no space left");
  EXPECT_EQ(*ListDirectory(dir()), std::vector<std::string>{"step-000001"});
  EXPECT_EQ(NewestStep(), 1);
  EXPECT_OK(Save(2));
  EXPECT_EQ(NewestStep(), 2);
}

TEST_F(CheckpointStoreTest, StrangeContentIsRefused) {
  const auto save = [&](auto write) {
    return store_->Save(4, [&](const std::string& to) {
      write(to);
      return absl::OkStatus();
    });
  };
  EXPECT_ERROR(save([](const std::string&) {}), kFailedPrecondition, "no files");
  EXPECT_ERROR(save([](const std::string& to) { WriteFile(to + "/manifest.json", "{}"); }),
               kFailedPrecondition, "manifest.json");
  EXPECT_ERROR(save([](const std::string& to) { fs::create_symlink("/etc/passwd", to + "/link"); }),
               kFailedPrecondition, "link is neither");
  EXPECT_ERROR(save([](const std::string& to) { WriteFile(to + "/\xff", "x"); }),
               kFailedPrecondition, "UTF-8");
  EXPECT_ERROR(store_->Save(-1, [](const std::string&) { return absl::OkStatus(); }),
               kInvalidArgument, "-1 is negative");
  EXPECT_TRUE(ListDirectory(dir())->empty());
}

TEST_F(CheckpointStoreTest, RetentionKeepsTheLastAndTheMilestones) {
  Open({.keep_last = 2, .keep_every = 100});
  for (int64_t step = 30; step <= 330; step += 10) ASSERT_OK(Save(step));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{100, 200, 300, 320, 330}));
  EXPECT_EQ(ListDirectory(dir())->size(), 5u);  // and no trash
}

TEST_F(CheckpointStoreTest, RetentionCountsOnlyWhatIsSound) {
  Open({.keep_last = 2});
  ASSERT_OK(Save(1));
  ASSERT_OK(Save(2));
  fs::remove(Path("step-000002/optimizer.bin"));
  ASSERT_OK(Save(3));
  // Step 2 is damaged, so step 1 must stay.
  EXPECT_EQ(Steps(), (std::vector<int64_t>{1, 2, 3}));
  ASSERT_OK(Save(4));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{2, 3, 4}));
}

TEST_F(CheckpointStoreTest, StepJustSavedStays) {
  Open({.keep_last = 2});
  for (const int64_t step : {10, 20, 30}) ASSERT_OK(Save(step));
  ASSERT_OK_AND_ASSIGN(const std::string path, Save(5));
  EXPECT_TRUE(FileExists(path));
}

TEST_F(CheckpointStoreTest, OptionsAreChecked) {
  EXPECT_ERROR(CheckpointStore::Open(dir(), {.keep_last = 1}), kInvalidArgument,
               "keep_last 1 is below 2");
  EXPECT_ERROR(CheckpointStore::Open(dir(), {.keep_every = -1}), kInvalidArgument, "keep_every -1");
  WriteFile(temp_.File("file"), "x");
  EXPECT_FALSE(CheckpointStore::Open(temp_.File("file"), {}).ok());
}

TEST_F(CheckpointStoreTest, LeftoversOfTheDeadAreRemoved) {
  for (const char* name :
       {".tmp-step-000009-999999999", ".tmp-step-000009-1", ".trash-step-000001-5"}) {
    fs::create_directories(Path(name));
    WriteFile(Path(name) + "/file", "x");
  }
  // This directory has a writer, which holds its lock.
  fs::create_directories(Path(".tmp-step-000010-2"));
  const int fd = open(Path(".tmp-step-000010-2").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  Open({});
  EXPECT_EQ(*ListDirectory(dir()), std::vector<std::string>{".tmp-step-000010-2"});
  close(fd);
  Open({});
  EXPECT_TRUE(ListDirectory(dir())->empty());
}

TEST_F(CheckpointStoreTest, OpenDuringASaveLeavesItAlone) {
  EXPECT_OK(store_->Save(8, [&](const std::string& to) {
    EXPECT_OK(CheckpointStore::Open(dir(), {}));
    return WriteExample(to, 8);
  }));
  EXPECT_EQ(NewestStep(), 8);
}

// Kinds of damage to the newest checkpoint. The older one is used, and the damage is counted.
using Path = const std::string&;
struct Damage {
  const char* name;
  void (*apply)(Path path);
};
void Flip(const std::string& path, size_t offset) {
  std::string content = ReadFile(path);
  ASSERT_LT(offset, content.size());
  content[offset] ^= 1;
  WriteFile(path, content);
}

class DamagedCheckpointTest : public CheckpointStoreTest,
                              public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedCheckpointTest, OlderOneIsUsed) {
  ASSERT_OK(Save(10));
  ASSERT_OK(Save(20));
  GetParam().apply(Path("step-000020"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(NewestStep(), 10);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("damaged checkpoint"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(NewestStep(), 10);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "told once";
  EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 20}));  // left alone
  // With the other one damaged as well, there is nothing to continue from, which differs from a
  // fresh start.
  GetParam().apply(Path("step-000010"));
  EXPECT_ERROR(store_->Newest(), kDataLoss, "all 2 checkpoints");
}

void ReplaceInManifest(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = ReadFile(path + "/manifest.json");
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  WriteFile(path + "/manifest.json", text.replace(at, from.size(), to));
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedCheckpointTest,
    ::testing::Values(
        Damage{"FirstByte", [](Path p) { Flip(p + "/optimizer.bin", 0); }},
        Damage{"LastByte",
               [](Path p) {
                 Flip(p + "/student/model.bin", fs::file_size(p + "/student/model.bin") - 1);
               }},
        Damage{"Truncated", [](Path p) { fs::resize_file(p + "/state.json", 100); }},
        Damage{"Empty", [](Path p) { fs::resize_file(p + "/state.json", 0); }},
        Damage{"Longer", [](Path p) { fs::resize_file(p + "/state.json", 30000); }},
        Damage{"FileGone", [](Path p) { fs::remove(p + "/student/model.bin"); }},
        Damage{"ManifestGone", [](Path p) { fs::remove(p + "/manifest.json"); }},
        Damage{"ManifestEmpty", [](Path p) { WriteFile(p + "/manifest.json", ""); }},
        Damage{"ManifestNoObject", [](Path p) { WriteFile(p + "/manifest.json", "[1]"); }},
        Damage{"ManifestTruncated", [](Path p) { fs::resize_file(p + "/manifest.json", 50); }},
        Damage{"ManifestHash",
               [](Path p) { ReplaceInManifest(p, "\"sha256\": \"", "\"sha256\": \"0"); }},
        Damage{"ManifestStep", [](Path p) { ReplaceInManifest(p, "\"step\": ", "\"step\": 9"); }},
        Damage{"ManifestVersion",
               [](Path p) { ReplaceInManifest(p, "\"version\": 1", "\"version\": 2"); }},
        Damage{"ManifestFormat", [](Path p) { ReplaceInManifest(p, "taopd", "other"); }},
        Damage{"ManifestLeadsOut",
               [](Path p) {
                 fs::copy(p + "/optimizer.bin", p + "/../optimizer.bin",
                          fs::copy_options::overwrite_existing);
                 ReplaceInManifest(p, "optimizer.bin", "../optimizer.bin");
               }},
        Damage{"ManifestNegativeSize",
               [](const std::string& p) {
                 ReplaceInManifest(p, "size_bytes\": ", "size_bytes\": -");
               }},
        Damage{"OtherStepsContent", [](Path p) { ASSERT_OK(WriteExample(p, 77)); }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(CheckpointStoreTest, SizesAreComparedWithoutHashes) {
  ASSERT_OK(Save(10));
  fs::resize_file(Path("step-000010/state.json"), 100);
  EXPECT_ERROR(VerifyCheckpoint(Path("step-000010"), 10, /*hashes=*/false), kDataLoss,
               "100 bytes instead of");
}

TEST_F(CheckpointStoreTest, PinnedStepsStayUntilOthersArePinned) {
  Open({.keep_last = 2});
  store_->Pin({1, 3});
  for (int64_t step = 1; step <= 6; ++step) ASSERT_OK(Save(step));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{1, 3, 5, 6}));
  store_->Pin({3});
  ASSERT_OK(Save(7));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{3, 6, 7}));
}

// A checkpoint within step 21 is newer than that of step 20, and is deleted once there is a newer
// one.
TEST_F(CheckpointStoreTest, ACheckpointWithinAStepLastsUntilTheNext) {
  const auto save = [&](int64_t step, int64_t mini_batch) {
    return store_->Save(
        step, [&](const std::string& to) { return WriteExample(to, step); }, mini_batch);
  };
  ASSERT_OK(Save(10));
  ASSERT_OK(Save(20));
  ASSERT_OK_AND_ASSIGN(const std::string first, save(20, 2));
  EXPECT_EQ(first, Path("step-000020-mini-2"));
  ASSERT_OK_AND_ASSIGN(auto newest, store_->Newest());
  EXPECT_EQ(newest->path, first);
  EXPECT_EQ(newest->mini_batch, 2);
  // It does not count among the kept steps.
  EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 20, 20}));
  ASSERT_OK(save(20, 10));
  EXPECT_EQ(*ListDirectory(dir()),
            (std::vector<std::string>{"step-000010", "step-000020", "step-000020-mini-10"}));
  // A run that goes back to step 20 does not need it.
  ASSERT_OK(store_->DeleteAfter(20));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 20}));
  ASSERT_OK(save(20, 10));
  ASSERT_OK(Save(30));
  EXPECT_EQ(*ListDirectory(dir()), (std::vector<std::string>{"step-000020", "step-000030"}));
}

TEST_F(CheckpointStoreTest, TheNewestUpToAStepSkipsDamagedOnesAndDeletesNothing) {
  Open({.keep_last = 9});
  for (const int64_t step : {2, 4, 6}) ASSERT_OK(Save(step));
  const auto newest = [&](int64_t max_step) {
    const auto found = store_->Newest(max_step);
    EXPECT_OK(found);
    return found.ok() && *found ? (*found)->step : -1;
  };
  EXPECT_EQ(newest(1), -1);
  EXPECT_EQ(newest(5), 4);
  EXPECT_EQ(newest(6), 6);
  fs::remove(Path("step-000004/manifest.json"));
  EXPECT_EQ(newest(5), 2);
  fs::remove(Path("step-000002/manifest.json"));
  EXPECT_ERROR(store_->Newest(5), kDataLoss, "all 2 checkpoints");
  EXPECT_EQ(newest(6), 6);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{2, 4, 6}));
}

TEST_F(CheckpointStoreTest, DeleteAfterLeavesEarlierCheckpointsAlone) {
  Open({.keep_last = 5});
  for (int64_t step = 1; step <= 4; ++step) ASSERT_OK(Save(step));
  WriteFile(Path("step-000004/state.json"), "damaged");
  ASSERT_OK(store_->DeleteAfter(2));
  EXPECT_EQ(Steps(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(NewestStep(), 2);
  ASSERT_OK(store_->DeleteAfter(2));
  // The same steps can be saved again, with other contents.
  ASSERT_OK(Save(3));
  EXPECT_EQ(NewestStep(), 3);
}

}  // namespace
}  // namespace taopd::testing
