#include "common/model/cuda_requirements.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "common/model/decoder.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int kCuda128 = 12080, kCuda130 = 13000, kCuda131 = 13010;

std::string ProblemOn(std::string_view architectures, int capability, int driver = kCuda130) {
  const absl::Status status = CheckCudaArchitecture(architectures, capability, driver, kCuda130);
  EXPECT_TRUE(status.ok() || status.code() == kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(CudaDriver, OneOfTheSameMajorVersionIsEnoughAndAnOlderOneIsNamed) {
  for (const auto& [driver, runtime] : {std::pair(kCuda130, kCuda130),
                                        {kCuda131, kCuda130},
                                        {kCuda130, kCuda131},
                                        {14000, kCuda130}})
    EXPECT_OK(CheckCudaDriver(driver, runtime));
  EXPECT_EQ(
      CheckCudaDriver(kCuda128, kCuda130),
      absl::FailedPreconditionError("this machine's driver is for CUDA 12.8, and this program "
                                    "needs one for CUDA 13.0 (series 580 or newer)"));
  EXPECT_THAT(std::string(CheckCudaDriver(0, kCuda130).message()), HasSubstr("no driver"));
}

TEST(CudaArchitecture, MachineCodeRunsOnItsMajorVersionUpwardsAndSpecificCodeOnOneDevice) {
  for (const int capability : {80, 86, 89}) EXPECT_EQ(ProblemOn("80-real", capability), "");
  EXPECT_EQ(ProblemOn("75-real,86-real", 89), "");
  EXPECT_NE(ProblemOn("86-real", 80), "");
  EXPECT_NE(ProblemOn("80-real", 90), "");
  EXPECT_EQ(ProblemOn("100-real", 103), "");
  EXPECT_NE(ProblemOn("100-real", 120), "");
  EXPECT_EQ(ProblemOn("90a-real", 90), "");
  EXPECT_NE(ProblemOn("100a-real", 103), "");
  EXPECT_NE(ProblemOn("90a", 100), "");  // nor does its PTX
}

TEST(CudaArchitecture, PtxRunsOnAllThatIsNewer) {
  EXPECT_EQ(ProblemOn("90-virtual", 120), "");
  EXPECT_EQ(ProblemOn("80", 120), "");
  EXPECT_NE(ProblemOn("90-virtual", 89), "");
  // The driver compiles it, which one of an older CUDA cannot.
  const absl::Status old = CheckCudaArchitecture("100-virtual", 120, kCuda130, kCuda131);
  EXPECT_THAT(std::string(old.message()),
              AllOf(HasSubstr("12.0"), HasSubstr("CUDA 13.0"), HasSubstr("PTX of CUDA 13.1"),
                    HasSubstr("newer driver")));
  EXPECT_TRUE(CheckCudaArchitecture("120-real,100-virtual", 120, kCuda130, kCuda131).ok());
}

TEST(CudaArchitecture, TheRefusalNamesBothSides) {
  EXPECT_EQ(
      ProblemOn("80-real,90a-real,100-virtual", 75),
      "it has compute capability 7.5, and this program has kernels for 8.0, 9.0a and, as PTX, "
      "10.0: build it with -DCMAKE_CUDA_ARCHITECTURES=75-real for this device");
  EXPECT_EQ(CheckCudaArchitecture("native", 90, kCuda130, kCuda130).code(), kInternal);
}

// The list of the tree, as the build passes it on.
TEST(CudaArchitecture, TheBuildsListRunsFromAmpereToWhatIsNewerThanBlackwell) {
  const std::string content = ReadFile(SourcePath("common/cmake/CudaArchitectures.cmake"));
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(content, found, std::regex("set\\(TAOPD_CUDA_ARCHITECTURES ([^)]*)\\)")));
  const std::string list = std::regex_replace(found[1].str(), std::regex(" "), ",");
  for (const int capability : {80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130}) {
    EXPECT_EQ(ProblemOn(list, capability), "");
  }
  EXPECT_NE(ProblemOn(list, 75), "");
}

#ifndef TAOPD_CUDA
TEST(ParseDevice, AProgramWithoutCudaSaysSo) {
  EXPECT_EQ(
      ParseDevice("cuda:1").status(),
      absl::FailedPreconditionError("device \"cuda:1\" does not exist: this program sees 0 CUDA "
                                    "devices; it is built without CUDA (preset cpu)"));
  EXPECT_EQ(ParseDevice("auto").value(), at::Device(at::kCPU));
  EXPECT_EQ(ParseDevice("cuda:").status().code(), kInvalidArgument);
}
#endif

}  // namespace
}  // namespace taopd::testing
