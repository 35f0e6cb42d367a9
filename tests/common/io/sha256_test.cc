#include "common/io/sha256.h"

#include "common/base/random.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// FIPS 180-4 examples, and lengths around the edges of the padding (values from coreutils
// sha256sum).
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(Sha256Hex(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(Sha256Hex(std::string(63, 'a')),
            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(Sha256Hex(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(Sha256Hex(std::string(119, 'a')),
            "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
  EXPECT_EQ(Sha256Hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesAreCut) {
  RandomStream random(7);
  std::string text(5000, '\0');
  for (char& c : text) c = static_cast<char>(random.NextBelow(256));
  for (int trial = 0; trial < 50; ++trial) {
    Sha256 hash;
    for (size_t begin = 0; begin < text.size();) {
      const size_t size = random.NextBelow(150);
      hash.Update(std::string_view(text).substr(begin, size));
      begin += size;
    }
    ASSERT_EQ(hash.HexDigest(), Sha256Hex(text));
  }
}

TEST(Sha256, OfFile) {
  TempDir dir;
  const std::string text(3 << 20, 'x');
  WriteFile(dir.File("x"), text);
  ASSERT_OK_AND_ASSIGN(const std::string hash, Sha256OfFile(dir.File("x")));
  EXPECT_EQ(hash, Sha256Hex(text));
  EXPECT_ERROR(Sha256OfFile(dir.File("absent")), kNotFound, "absent");
}

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
}  // namespace taopd::testing
