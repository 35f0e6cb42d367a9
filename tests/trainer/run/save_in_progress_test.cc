// Tests of checkpoints that several ranks write during the training. The ranks are threads of this
// process, and the files have a few bytes.
#include "trainer/run/save_in_progress.h"

#include <absl/synchronization/notification.h>
#include <pthread.h>

#include <filesystem>
#include <stdexcept>

#include "common/io/file.h"
#include "tests/common/dist/rank_threads.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kRanks = 3;

// Calls `body` on each rank with its group and, on rank 0, a store in `dir`.
void WithStore(const std::string& dir,
               const std::function<void(ProcessGroup&, CheckpointStore*)>& body) {
  OnRanks(kRanks, ProcessGroupOptions(), [&](ProcessGroup& group) {
    std::unique_ptr<CheckpointStore> store;
    if (group.is_root()) {
      ASSERT_OK_AND_ASSIGN(store, CheckpointStore::Open(dir, CheckpointOptions()));
    }
    body(group, store.get());
    group.Leave();
  });
}

absl::Status WritePart(const ProcessGroup& group, const std::string& dir) {
  return WriteFileAtomically(Concat(dir, "/part-", group.rank()), Concat("of ", group.rank()));
}

bool HasCheckpoint(const std::string& dir, int64_t step) {
  return std::filesystem::exists(Concat(dir, "/step-00000", step, "/manifest.json"));
}

TEST(SaveInProgressTest, IsCompleteWhenAllPartsAreThere) {
  const TempDir dir;
  absl::Notification may_write;
  WithStore(dir.path(), [&](ProcessGroup& group, CheckpointStore* store) {
    const auto save = SaveInProgress::Start(&group, store, 7, [&](const std::string& to) {
      if (group.rank() == 2) may_write.WaitForNotification();
      return WritePart(group, to);
    });
    // Rank 0 has written its part, or soon will; rank 2 has not.
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(save->IsDone(/*waits=*/false));
    EXPECT_FALSE(HasCheckpoint(dir.path(), 7));
    EXPECT_OK(Barrier(group));
    if (group.is_root()) may_write.Notify();
    EXPECT_TRUE(save->IsDone(/*waits=*/true));
    EXPECT_TRUE(save->IsDone(/*waits=*/false)) << "and stays so";
    EXPECT_EQ(save->result().step, 7);
    ASSERT_OK(save->result().path);
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ReadFile(Concat(*save->result().path, "/part-", rank)), Concat("of ", rank));
    }
  });
  EXPECT_TRUE(HasCheckpoint(dir.path(), 7));
}

TEST(SaveInProgressTest, AnErrorOfOneRankIsThatOfAll) {
  for (const int64_t culprit : {0, 2}) {
    for (const bool throws : {false, true}) {
      SCOPED_TRACE(Concat("rank ", culprit, throws ? " throws" : ""));
      const TempDir dir;
      WithStore(dir.path(), [&](ProcessGroup& group, CheckpointStore* store) {
        auto save = SaveInProgress::Start(&group, store, 3, [&](const std::string& to) {
          if (group.rank() != culprit) return WritePart(group, to);
          if (throws) throw std::runtime_error("planted");
          return absl::ResourceExhaustedError("planted");
        });
        EXPECT_TRUE(save->IsDone(/*waits=*/true));
        const absl::Status failed = save->result().path.status();
        // Only a lack of memory would make an exception RESOURCE_EXHAUSTED.
        EXPECT_EQ(failed.code(),
                  throws ? absl::StatusCode::kInternal : absl::StatusCode::kResourceExhausted);
        EXPECT_NE(failed.message().find("planted"), std::string::npos) << failed;
        // The next checkpoint is not affected.
        save = SaveInProgress::Start(&group, store, 4,
                                     [&](const std::string& to) { return WritePart(group, to); });
        EXPECT_TRUE(save->IsDone(/*waits=*/true));
        EXPECT_OK(save->result().path);
      });
      EXPECT_FALSE(HasCheckpoint(dir.path(), 3));
      EXPECT_TRUE(HasCheckpoint(dir.path(), 4));
    }
  }
}

// Sets the size of the stacks of new threads. None can start if no address space has this size.
void SetStackSize(size_t bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
}

TEST(SaveInProgressTest, AThreadThatCannotStartIsAnErrorOfAll) {
  const TempDir dir;
  WithStore(dir.path(), [&](ProcessGroup& group, CheckpointStore* store) {
    for (const int64_t step : {3, 4}) {
      // The size is that of all ranks, because they are threads of this process.
      EXPECT_OK(Barrier(group));
      if (group.is_root()) SetStackSize(step == 3 ? size_t{1} << 50 : size_t{8} << 20);
      EXPECT_OK(Barrier(group));
      const auto save = SaveInProgress::Start(
          &group, store, step, [&](const std::string& to) { return WritePart(group, to); });
      EXPECT_TRUE(save->IsDone(/*waits=*/true));
      EXPECT_EQ(absl::IsResourceExhausted(save->result().path.status()), step == 3);
    }
  });
  EXPECT_TRUE(HasCheckpoint(dir.path(), 4));
}

TEST(SaveInProgressTest, ARunThatEndsGivesItUp) {
  const TempDir dir;
  WithStore(dir.path(), [&](ProcessGroup& group, CheckpointStore* store) {
    SaveInProgress::Start(&group, store, 3,
                          [&](const std::string& to) { return WritePart(group, to); });
  });
  EXPECT_FALSE(HasCheckpoint(dir.path(), 3));
}

TEST(SaveInProgressTest, WhatIsThereIsNotWrittenAgain) {
  const TempDir dir;
  WithStore(dir.path(), [&](ProcessGroup& group, CheckpointStore* store) {
    for (int i = 0; i < 2; ++i) {
      const auto save = SaveInProgress::Start(&group, store, 3, [&](const std::string& to) {
        EXPECT_EQ(i, 0);
        return WritePart(group, to);
      });
      EXPECT_TRUE(save->IsDone(/*waits=*/true));
      EXPECT_OK(save->result().path);
    }
  });
}

}  // namespace
}  // namespace taopd::testing
