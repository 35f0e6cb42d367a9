#include "server/structured/wire.h"

#include <gtest/gtest.h>
#include <malloc.h>

namespace taopd::testing {
namespace {

TEST(FrameBufferTest, CutsAStreamIntoFrames) {
  const std::string stream = Framed("ab") + Framed("") + Framed("cde");
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    FrameBuffer buffer;
    std::vector<std::string> frames;
    for (const std::string& part : {stream.substr(0, cut), stream.substr(cut)}) {
      buffer.Append(part);
      while (auto frame = buffer.Next(/*max_bytes=*/3)) frames.push_back(*std::move(frame));
    }
    EXPECT_EQ(frames, std::vector<std::string>({"ab", "", "cde"})) << cut;
    buffer.Append(Framed("four"));
    EXPECT_FALSE(buffer.Next(3));
    EXPECT_FALSE(buffer.ok());
  }
}

TEST(FrameBufferTest, KeepsNoMemoryOfFramesThatWereTaken) {
  const auto num_bytes = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  FrameBuffer buffer;
  const size_t before = num_bytes();
  for (int i = 0; i < 1000; ++i) {
    buffer.Append(Framed(std::string(10'000, 'x')));
    ASSERT_TRUE(buffer.Next(10'000));
    ASSERT_FALSE(buffer.Next(10'000));
  }
  EXPECT_LT(num_bytes(), before + 1'000'000);
}

}  // namespace
}  // namespace taopd::testing
