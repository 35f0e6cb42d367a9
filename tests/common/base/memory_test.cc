#include "common/base/memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() {
    std::filesystem::create_directories(root_.File("proc"));
    std::filesystem::create_directories(root_.File("sys/fs/cgroup"));
  }
  // Writes the files of the control group `path`, which is empty or ends with a slash.
  void WriteGroup(const std::string& path, const std::string& max, const std::string& current) {
    const std::string dir = "sys/fs/cgroup/" + path;
    std::filesystem::create_directories(root_.File(dir));
    WriteFile(root_.File(dir + "memory.max"), max + "\n");
    WriteFile(root_.File(dir + "memory.current"), current + "\n");
  }
  TempDir root_;
};

TEST_F(AvailableMemory, IsTheSmallerOfTheMachinesAndTheGroups) {
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), std::numeric_limits<int64_t>::max());
  WriteFile(root_.File("proc/meminfo"), "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1000 * 1024);
  WriteGroup("", "max", "600000");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1000 * 1024);
  WriteFile(root_.File("sys/fs/cgroup/memory.max"), "900000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 300000);
  // Page cache of the group can be dropped.
  WriteFile(root_.File("sys/fs/cgroup/memory.stat"), "anon 1\nfile 200000\nfile_mapped 7\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 500000);
  // Shared memory is part of it, and cannot.
  WriteFile(root_.File("sys/fs/cgroup/memory.stat"), "file 200000\nshmem 150000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 350000);
  WriteFile(root_.File("sys/fs/cgroup/memory.max"), "100\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 0);
}

TEST_F(AvailableMemory, IsTheLeastOfTheGroupsAboveTheProcess) {
  std::filesystem::create_directories(root_.File("proc/self"));
  WriteFile(root_.File("proc/self/cgroup"), "4:memory:/other\n0::/job/step\n");
  WriteGroup("job/step/", "700000", "100000");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 600000);
  WriteGroup("job/", "900000", "500000");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 400000);
  WriteGroup("", "300000", "1");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 299999);
  // Groups beside those of the process do not count.
  WriteGroup("other/", "5", "1");
  WriteGroup("job/other/", "5", "1");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 299999);
  // The files of the process's own group may be missing, as in a container.
  WriteFile(root_.File("proc/self/cgroup"), "0::/../elsewhere\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 299999);
  WriteFile(root_.File("proc/self/cgroup"), "0::/\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 299999);
}

TEST_F(AvailableMemory, AnonymousBytesAreThoseOfTheProcess) {
  EXPECT_EQ(AnonymousMemoryBytes(root_.path()), 0);
  std::filesystem::create_directories(root_.File("proc/self"));
  WriteFile(root_.File("proc/self/status"), "VmRSS:\t 900 kB\nRssAnon:\t     700 kB\n");
  EXPECT_EQ(AnonymousMemoryBytes(root_.path()), 700 * 1024);
  EXPECT_GT(AnonymousMemoryBytes(), 100 * 1024);
}

TEST(ParseMemoryBytes, ReadsNumbersWithUnits) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},
      {"4294967297", 4294967297},
      {"17B", 17},
      {"2KiB", 2048},
      {"3MiB", 3145728},
      {"4GiB", 4294967296},
      {"1.5 GiB", 1610612736},
      {"2TiB", 2199023255552},
      {"1KB", 1000},
      {"1MB", 1000000},
      {"80GB", 80000000000},
      {"1TB", 1000000000000},
  };
  for (const auto& [text, bytes] : cases) {
    ASSERT_OK_AND_ASSIGN(const int64_t parsed, ParseMemoryBytes(text));
    EXPECT_EQ(parsed, bytes) << text;
  }
}

TEST(ParseMemoryBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "4gib", "4G", "1e9", "1.5.2GiB", "4 GiB x", " 4", "nan",
                           "9223372036854775808", "5000000000000TiB"}) {
    EXPECT_ERROR(ParseMemoryBytes(text), kInvalidArgument,
                 "\"" + std::string(text) + "\" is not a size");
  }
}

TEST(MemoryText, NamesTheUnit) {
  EXPECT_EQ(MemoryText(int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(MemoryText(5 << 20), "5.0 MiB");
}

}  // namespace
}  // namespace taopd::testing
