#include "common/metrics/tensorboard_sink.h"

#include <gtest/gtest.h>

#include <string>

#include "common/metrics/event_file.h"
#include "tests/common/io/file_size_limit.h"
#include "tests/common/io/truncate_failure.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(TensorBoardSink, WritesWholeFramesAtOnce) {
  const TempDir dir;
  ManualClock clock(absl::FromUnixSeconds(1767225600));
  TensorBoardOptions options{.dir = dir.File("tb"), .unique_suffix = "test"};
  ASSERT_OK_AND_ASSIGN(auto sink, TensorBoardSink::Open(options, &clock));
  EXPECT_EQ(sink->path(), dir.File("tb") + "/events.out.tfevents.1767225600.test");
  EXPECT_OK(sink->Write(7, {{"loss/mean", 0.5}}));
  EXPECT_EQ(ReadFile(sink->path()),
            TfRecordFrame(FileVersionEvent(1767225600)) +
                TfRecordFrame(ScalarsEvent(1767225600, 7, {{"loss/mean", 0.5}})));
}

TEST(TensorBoardSink, AResumedRunStartsANewSession) {
  const TempDir dir;
  ManualClock clock(absl::FromUnixSeconds(5));
  TensorBoardOptions options{.dir = dir.path(), .unique_suffix = "test", .resume_step = 40};
  ASSERT_OK_AND_ASSIGN(auto sink, TensorBoardSink::Open(options, &clock));
  EXPECT_EQ(ReadFile(sink->path()),
            TfRecordFrame(FileVersionEvent(5)) + TfRecordFrame(SessionStartEvent(5, 40)));
}

TEST(TensorBoardSink, AnExistingFileIsNotOverwrittenAndAnImpossibleOneNamed) {
  const TempDir dir;
  ManualClock clock;
  const TensorBoardOptions options{.dir = dir.path(), .unique_suffix = "test"};
  ASSERT_OK_AND_ASSIGN(auto sink, TensorBoardSink::Open(options, &clock));
  const std::string first = dir.File("events.out.tfevents.0000000000.test");
  const std::string before = ReadFile(first);
  ASSERT_OK_AND_ASSIGN(auto second, TensorBoardSink::Open(options, &clock));
  ASSERT_OK(second->Write(1, {{"a", 1.0}}));
  EXPECT_EQ(ReadFile(first), before);
  // It follows the first file in the order of names, in which TensorBoard reads.
  EXPECT_GT(ReadFile(first + ".001").size(), before.size());
  EXPECT_ERROR(TensorBoardSink::Open({.dir = dir.path(), .unique_suffix = "no/file"}, &clock),
               kNotFound, "cannot create " + dir.path() + "/events.out.tfevents.");
}

TEST(TensorBoardSink, AFullDiskLeavesWholeFrames) {
  const TempDir dir;
  ManualClock clock;
  ASSERT_OK_AND_ASSIGN(auto sink,
                       TensorBoardSink::Open({.dir = dir.path(), .unique_suffix = "test"}, &clock));
  absl::Status status;
  {
    const FileSizeLimit full(200);
    EXPECT_OK(sink->Write(1, {{"a", 1}}));
    status = sink->Write(2, {{std::string(1000, 'x'), 1}});
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(sink->path()));
  EXPECT_OK(sink->Write(3, {{"a", 2}}));
  EXPECT_EQ(ReadFile(sink->path()), TfRecordFrame(FileVersionEvent(0)) +
                                        TfRecordFrame(ScalarsEvent(0, 1, {{"a", 1}})) +
                                        TfRecordFrame(ScalarsEvent(0, 3, {{"a", 2}})));
}

TEST(TensorBoardSink, NoFrameFollowsHalfAFrame) {
  const TempDir dir;
  ManualClock clock;
  ASSERT_OK_AND_ASSIGN(auto sink,
                       TensorBoardSink::Open({.dir = dir.path(), .unique_suffix = "test"}, &clock));
  {
    const TruncateFailure fixed_size;
    absl::Status status;
    {
      const FileSizeLimit full(100);
      status = sink->Write(1, {{std::string(1000, 'x'), 1}});
    }
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(sink->Write(2, {{"a", 1}}), status);
    EXPECT_EQ(ReadFile(sink->path()).size(), 100);
  }
  EXPECT_OK(sink->Write(3, {{"a", 2}}));
  EXPECT_EQ(ReadFile(sink->path()),
            TfRecordFrame(FileVersionEvent(0)) + TfRecordFrame(ScalarsEvent(0, 3, {{"a", 2}})));
}

}  // namespace
}  // namespace taopd::testing
