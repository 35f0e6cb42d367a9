#include "common/io/sha256_all.h"

#include <gtest/gtest.h>

#include "common/io/sha256.h"

namespace taopd {
namespace {

TEST(Sha256OfAll, IsTheHashOfEachPieceWhateverTheThreads) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < 40; ++i) texts.emplace_back(i * 97, static_cast<char>('a' + i % 26));
  std::vector<std::span<const std::byte>> pieces;
  for (const std::string& text : texts) pieces.push_back(std::as_bytes(std::span(text)));
  for (const int threads : {0, 1, 3, 100}) {
    const std::vector<std::string> digests = Sha256OfAll(pieces, threads);
    ASSERT_EQ(digests.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(digests[i], Sha256Hex(texts[i]));
  }
  EXPECT_TRUE(Sha256OfAll({}, 4).empty());
}

}  // namespace
}  // namespace taopd
