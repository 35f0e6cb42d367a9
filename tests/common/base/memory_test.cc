#include "common/base/memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/files.h"

namespace taopd::testing {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() {
    std::filesystem::create_directories(root_.File("proc"));
    std::filesystem::create_directories(root_.File("sys/fs/cgroup"));
  }
  TempDir root_;
};

TEST_F(AvailableMemory, IsTheSmallerOfTheMachinesAndTheGroups) {
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), std::numeric_limits<int64_t>::max());
  WriteFile(root_.File("proc/meminfo"), "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1000 * 1024);
  WriteFile(root_.File("sys/fs/cgroup/memory.max"), "max\n");
  WriteFile(root_.File("sys/fs/cgroup/memory.current"), "600000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1000 * 1024);
  WriteFile(root_.File("sys/fs/cgroup/memory.max"), "900000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 300000);
  // Page cache of the group can be dropped.
  WriteFile(root_.File("sys/fs/cgroup/memory.stat"), "anon 1\nfile 200000\nfile_mapped 7\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 500000);
  WriteFile(root_.File("sys/fs/cgroup/memory.max"), "100\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 0);
}

TEST(MemoryText, NamesTheUnit) {
  EXPECT_EQ(MemoryText(int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(MemoryText(5 << 20), "5.0 MiB");
}

}  // namespace
}  // namespace taopd::testing
