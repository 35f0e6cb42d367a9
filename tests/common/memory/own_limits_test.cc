#include "common/memory/own_limits.h"

#include <limits>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(OwnLimits, LowerTheBudget) {
  const TempDir root;
  std::filesystem::create_directories(root.File("proc/self"));
  WriteFile(root.File("proc/self/status"),
            "VmSize:\t 3145728 kB\nRssAnon:\t 1048576 kB\nVmData:\t 2097152 kB\n");
  const auto write_limits = [&](const std::string& data, const std::string& space) {
    WriteFile(root.File("proc/self/limits"),
              "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max data size             " +
                  data + "           unlimited            bytes\nMax address space         " +
                  space + "           unlimited            bytes\n");
  };
  const MemoryBudget budget = {.limit_bytes = 4 * kGib, .source = "a test"};
  const auto within = [&] { return WithinOwnLimits(budget, root.path()); };
  EXPECT_EQ(within().limit_bytes, 4 * kGib);  // nothing is known
  write_limits("unlimited", "unlimited");
  EXPECT_EQ(LeftByOwnLimits(root.path()), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(within().limit_bytes, 4 * kGib);
  write_limits(std::to_string(3 * kGib), "unlimited");  // 1 GiB left, 1 GiB held
  EXPECT_EQ(LeftByOwnLimits(root.path()), kGib);
  EXPECT_EQ(within().limit_bytes, 18 * kGib / 10);
  EXPECT_EQ(within().source, "0.9 of the 2.0 GiB that ulimit leaves it");
  write_limits(std::to_string(3 * kGib), std::to_string(2 * kGib));  // nothing left
  EXPECT_EQ(within().limit_bytes, 9 * kGib / 10);
  write_limits(std::to_string(100 * kGib), "unlimited");
  EXPECT_EQ(within().source, "a test");
}

}  // namespace
}  // namespace taopd::testing
