// Tests of what counts as a lack of memory, and of the result of a subcommand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "common/model/torch_errors.h"
#include "tests/support/status_matchers.h"
#include "trainer/commands/catch_exceptions.h"
#include "trainer/setup/process.h"

namespace taopd::testing {
namespace {

// Allocates more than any address space, which both allocators refuse at once.
void AllocateTooMuch() { at::empty({int64_t{1} << 60}, at::TensorOptions().dtype(at::kByte)); }

TEST(OutOfMemory, HasAnExitCodeOfItsOwn) {
  const auto code_of = [](const std::function<void()>& command) {
    return ExitCodeOf(CatchExceptions([&] {
      command();
      return absl::OkStatus();
    }));
  };
  EXPECT_EQ(code_of([] { AllocateTooMuch(); }), kExitOutOfMemory);
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), kExitOutOfMemory);
  EXPECT_EQ(code_of([] { at::zeros({2}).add_(at::zeros({3})); }), kExitInternal);
  EXPECT_EQ(code_of([] {}), kExitOk);
}

TEST(OutOfMemory, IsToldFromOtherErrors) {
  EXPECT_TRUE(IsOutOfMemory(std::bad_alloc()));
  EXPECT_FALSE(IsOutOfMemory(std::runtime_error("not enough memory")));
  try {
    AllocateTooMuch();
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_TRUE(IsOutOfMemory(error)) << error.what();
  }
  const auto status_of = [](const char* message) {
    try {
      TORCH_CHECK(false, message);
    } catch (const std::exception& error) {
      return StatusOfException(error, "loading DIR failed");
    }
  };
  EXPECT_ERROR(status_of("CUDA error: out of memory"), kResourceExhausted,
               "loading DIR failed: out of memory: CUDA error");
  EXPECT_ERROR(status_of("CUDA error: misaligned address"), kInternal,
               "loading DIR failed: CUDA error");
}

TEST(OutOfMemory, ThePeakOfThisProcessIsKnown) { EXPECT_GT(PeakMemoryBytes(), 10 << 20); }

}  // namespace
}  // namespace taopd::testing
