#include "common/io/buffered_jsonl.h"

#include <gtest/gtest.h>

#include "tests/common/io/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(BufferedJsonlWriter, LinesWaitForRoomInTheirOrder) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(auto writer, BufferedJsonlWriter::Open(dir.File("m.jsonl")));
  writer.Write({{"step", 1}});
  {
    const FileSizeLimit full(20);
    writer.Write({{"step", 2}});  // half of it would fit
    writer.Write({{"step", 3}});
    EXPECT_EQ(writer.num_waiting(), 2);
    EXPECT_FALSE(writer.Sync().ok());
    EXPECT_EQ(ReadFile(dir.File("m.jsonl")), "{\"step\":1}\n");
    EXPECT_EQ(*writer.SizeBytes(), 11);
  }
  writer.Write({{"step", 4}});
  EXPECT_EQ(ReadFile(dir.File("m.jsonl")),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");
  EXPECT_EQ(writer.num_waiting(), 0);
  EXPECT_EQ(writer.num_dropped(), 0);
}

TEST(BufferedJsonlWriter, WhatExceedsTheMemoryIsCounted) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(auto writer, BufferedJsonlWriter::Open(dir.File("m.jsonl"), -1, 25));
  {
    const FileSizeLimit full(0);
    for (int step = 1; step <= 5; ++step) writer.Write({{"step", step}});
    EXPECT_EQ(writer.num_waiting(), 2);
    EXPECT_EQ(writer.num_dropped(), 3);
  }
  EXPECT_OK(writer.Sync());
  writer.Write({{"step", 6}});
  EXPECT_EQ(ReadFile(dir.File("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n{\"step\":6}\n");
}

}  // namespace
}  // namespace taopd::testing
