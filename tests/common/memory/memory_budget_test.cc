#include "common/memory/memory_budget.h"

#include <limits>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

class CpuBudgetTest : public ::testing::Test {
 protected:
  void WriteMachine(int64_t available_kib, int64_t anonymous_kib) {
    std::filesystem::create_directories(root_.File("proc/self"));
    WriteFile(root_.File("proc/meminfo"),
              "MemAvailable: " + std::to_string(available_kib) + " kB\n");
    WriteFile(root_.File("proc/self/status"),
              "RssAnon: " + std::to_string(anonymous_kib) + " kB\n");
  }
  TempDir root_;
};

TEST_F(CpuBudgetTest, IsAShareOfWhatIsAvailableAndAlreadyHeld) {
  WriteMachine(9 << 20, 1 << 20);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, CpuBudget(MemoryLimits(), root_.path()));
  EXPECT_EQ(budget.device, "cpu");
  EXPECT_TRUE(budget.on_cpu());
  EXPECT_EQ(budget.limit_bytes, 9 * kGib);
  EXPECT_EQ(budget.source, "0.9 of the available 10.0 GiB");
  EXPECT_THAT(budget.warnings, IsEmpty());
}

TEST_F(CpuBudgetTest, TakesTheLimitAsGiven) {
  WriteMachine(9 << 20, 1 << 20);
  MemoryLimits limits = {.cpu_memory_limit_bytes = 10 * kGib};
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, CpuBudget(limits, root_.path()));
  EXPECT_EQ(budget.limit_bytes, 10 * kGib);
  EXPECT_EQ(budget.source, "cpu_memory_limit");
  EXPECT_THAT(budget.warnings, IsEmpty());
  limits.cpu_memory_limit_bytes = 11 * kGib;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget large, CpuBudget(limits, root_.path()));
  EXPECT_EQ(large.limit_bytes, 11 * kGib);
  EXPECT_THAT(large.warnings, ElementsAre(HasSubstr("only 10.0 GiB are available")));
}

TEST_F(CpuBudgetTest, NeedsALimitWhereTheMachineSaysNothing) {
  MemoryLimits limits;
  EXPECT_ERROR(CpuBudget(limits, root_.path()), kFailedPrecondition, "cpu_memory_limit");
  limits.cpu_memory_limit_bytes = kGib;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, CpuBudget(limits, root_.path()));
  EXPECT_EQ(budget.limit_bytes, kGib);
}

TEST(CudaBudget, IsAShareOfTheWholeDevice) {
  const MemoryBudget budget =
      CudaBudget({.gpu_memory_utilization = 0.5}, "cuda:1", 80 * kGib, 79 * kGib);
  EXPECT_EQ(budget.device, "cuda:1");
  EXPECT_FALSE(budget.on_cpu());
  EXPECT_EQ(budget.limit_bytes, 40 * kGib);
  EXPECT_EQ(budget.source, "gpu_memory_utilization 0.5 of 80.0 GiB");
  EXPECT_THAT(budget.warnings, IsEmpty());
}

TEST(CudaBudget, IsWhatOthersLeaveIfThatIsLess) {
  const MemoryBudget budget = CudaBudget(MemoryLimits(), "cuda:0", 80 * kGib, 30 * kGib);
  EXPECT_EQ(budget.limit_bytes, 30 * kGib);
  EXPECT_EQ(budget.source, "free on cuda:0");
  EXPECT_THAT(budget.warnings, ElementsAre(HasSubstr("30.0 GiB free, less than "
                                                     "gpu_memory_utilization 0.9 of 80.0 GiB")));
}

TEST(StatedBudget, DescribesADeviceThatNeedNotBeThere) {
  MemoryLimits limits;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget cpu, StatedBudget(limits, "cpu:10GiB"));
  EXPECT_EQ(cpu.device, "cpu");
  EXPECT_EQ(cpu.limit_bytes, 9 * kGib);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget cuda, StatedBudget(limits, "cuda:80GiB"));
  EXPECT_EQ(cuda.device, "cuda");
  EXPECT_EQ(cuda.limit_bytes, 72 * kGib);
  limits.cpu_memory_limit_bytes = 4 * kGib;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget limited, StatedBudget(limits, "cpu:10GiB"));
  EXPECT_EQ(limited.limit_bytes, 4 * kGib);
  for (const char* text :
       {"cpu", "10GiB", "tpu:10GiB", "cuda:lots", "cuda:0:10GiB", "cuda:0", "cpu:0.1B"}) {
    EXPECT_ERROR(StatedBudget(limits, text), kInvalidArgument, text);
  }
}

TEST(WithinOwnLimits, LowersTheBudget) {
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
  EXPECT_EQ(within().limit_bytes, 4 * kGib);
  write_limits(std::to_string(3 * kGib), "unlimited");  // 1 GiB left, 1 GiB held
  EXPECT_EQ(within().limit_bytes, 18 * kGib / 10);
  EXPECT_EQ(within().source, "0.9 of the 2.0 GiB that ulimit leaves it");
  write_limits(std::to_string(3 * kGib), std::to_string(2 * kGib));  // nothing left
  EXPECT_EQ(within().limit_bytes, 9 * kGib / 10);
  write_limits(std::to_string(100 * kGib), "unlimited");
  EXPECT_EQ(within().source, "a test");
}

TEST(ValidateMemoryLimits, NamesTheMember) {
  EXPECT_OK(ValidateMemoryLimits(MemoryLimits()));
  MemoryLimits limits;
  for (const double share : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()}) {
    limits.gpu_memory_utilization = share;
    EXPECT_ERROR(ValidateMemoryLimits(limits), kInvalidArgument, "gpu_memory_utilization");
  }
  limits.gpu_memory_utilization = 1.0;
  EXPECT_OK(ValidateMemoryLimits(limits));
  limits.cpu_memory_limit_bytes = -1;
  EXPECT_ERROR(ValidateMemoryLimits(limits), kInvalidArgument, "cpu_memory_limit_bytes -1");
}

}  // namespace
}  // namespace taopd::testing
