#include "common/metrics/tensorboard_sink.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "common/metrics/event_file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// CRC-32C bit by bit, independent of the table in event_file.cc.
uint32_t SlowMaskedCrc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// Returns the payloads of a TFRecord file; every length and checksum is verified.
std::vector<std::string> ReadFrames(const std::string& file) {
  std::vector<std::string> payloads;
  size_t at = 0;
  const auto read32 = [&](size_t offset) {
    uint32_t value = 0;
    std::memcpy(&value, file.data() + offset, 4);
    return value;
  };
  while (at < file.size()) {
    uint64_t length = 0;
    if (file.size() - at < 16) {
      ADD_FAILURE() << "half a frame at " << at;
      break;
    }
    std::memcpy(&length, file.data() + at, 8);
    EXPECT_EQ(read32(at + 8), SlowMaskedCrc(file.substr(at, 8)));
    if (file.size() - at - 16 < length) {
      ADD_FAILURE() << "the frame at " << at << " is longer than the file";
      break;
    }
    payloads.push_back(file.substr(at + 12, length));
    EXPECT_EQ(read32(at + 12 + length), SlowMaskedCrc(payloads.back()));
    at += 16 + length;
  }
  return payloads;
}

TEST(TensorBoardSink, WritesWholeFramesAtOnce) {
  const TempDir dir;
  ManualClock clock(absl::FromUnixSeconds(1767225600));
  TensorBoardOptions options{.dir = dir.File("tb"), .unique_suffix = "test"};
  ASSERT_OK_AND_ASSIGN(auto sink, TensorBoardSink::Open(options, &clock));
  EXPECT_EQ(sink->path(), dir.File("tb") + "/events.out.tfevents.1767225600.test");
  EXPECT_OK(sink->Write(7, {{"loss/mean", 0.5}}));
  const std::vector<std::string> frames = ReadFrames(testing::ReadFile(sink->path()));
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0], FileVersionEvent(1767225600));
  EXPECT_EQ(frames[1], ScalarsEvent(1767225600, 7, {{"loss/mean", 0.5}}));
}

TEST(TensorBoardSink, AResumedRunStartsANewSession) {
  const TempDir dir;
  ManualClock clock(absl::FromUnixSeconds(5));
  TensorBoardOptions options{.dir = dir.path(), .unique_suffix = "test", .resume_step = 40};
  ASSERT_OK_AND_ASSIGN(auto sink, TensorBoardSink::Open(options, &clock));
  const std::vector<std::string> frames = ReadFrames(testing::ReadFile(sink->path()));
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[1], SessionStartEvent(5, 40));
}

TEST(TensorBoardSink, AnExistingFileIsNotOverwritten) {
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
  EXPECT_GT(testing::ReadFile(first + ".001").size(), before.size());
}

TEST(TensorBoardSink, AFullDiskLeavesWholeFrames) {
  const TempDir dir;
  ManualClock clock;
  ASSERT_OK_AND_ASSIGN(auto sink,
                       TensorBoardSink::Open({.dir = dir.path(), .unique_suffix = "test"}, &clock));
  // The limit on a file's size makes a write fail half-way, as a full disk does.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_OK(sink->Write(1, {{"a", 1}}));
  const absl::Status status = sink->Write(2, {{std::string(1000, 'x'), 1}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(sink->path()));
  EXPECT_OK(sink->Write(3, {{"a", 2}}));
  const std::vector<std::string> frames = ReadFrames(testing::ReadFile(sink->path()));
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[2], ScalarsEvent(0, 3, {{"a", 2}}));
}

}  // namespace
}  // namespace taopd::testing
