#include "server/serving/policy/received_weights.h"

#include <filesystem>

#include "common/io/disk_space.h"
#include "common/io/sha256.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kModelBytes = 1000;

class ReceivedWeightsTest : public ::testing::Test {
 protected:
  // Sends bytes of a file. Its whole size is `file_bytes` or, without it, that of the data.
  absl::StatusOr<int64_t> Put(const std::string& version, const std::string& file,
                              const std::string& data, int64_t offset = 0,
                              std::optional<int64_t> file_bytes = std::nullopt) {
    const WeightFilePart part = {
        .version = version,
        .file = file,
        .offset = offset,
        .file_bytes = file_bytes.value_or(static_cast<int64_t>(data.size())),
        .data = data,
        .sha256 = Sha256Hex(data)};
    return received_->Put(part, kModelBytes);
  }
  std::string ReadReceived(const std::string& version, const std::string& file) {
    const absl::StatusOr<std::string> dir = received_->DirectoryOf(version);
    EXPECT_OK(dir);
    return dir.ok() ? ReadFile(*dir + "/" + file) : "";
  }

  const TempDir dir_;
  std::optional<ReceivedWeights> received_{std::in_place, dir_.path()};
};

TEST_F(ReceivedWeightsTest, NamesAndSizesOfFilesAreChecked) {
  for (const char* file : {"../x", "", ".x", "a/b", "a\n"})
    EXPECT_ERROR(Put("v", file, "0123"), kInvalidArgument, "file \"");
  EXPECT_ERROR(Put("../v", "x", "0123"), kInvalidArgument, "version \"");
  EXPECT_ERROR(Put("v", "x", "0123", 0, int64_t{1} << 40), kInvalidArgument, "file_bytes");
  EXPECT_ERROR(Put("v", "x", "0123", 0, -1), kInvalidArgument, "file_bytes -1");
  EXPECT_ERROR(Put("v", "y", "0123", 0, 3), kOutOfRange, "of its 3 bytes");
  const std::string large(static_cast<size_t>(ReceivedWeights::kMaxPartBytes) + 1, 'x');
  EXPECT_ERROR(Put("v", "z", large), kInvalidArgument, "data has 16777217 bytes");
}

// A file that is asked for and not sent takes no room.
TEST_F(ReceivedWeightsTest, AQuestionMakesNothingAndAnEmptyFileIsMade) {
  ASSERT_OK_AND_ASSIGN(const int64_t here, Put("v", "x", "", 0, 10));
  EXPECT_EQ(here, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  EXPECT_ERROR(received_->DirectoryOf("v"), kNotFound, "\"v\"");
  for (int i = 0; i < 2; ++i) EXPECT_OK(Put("v", "x", ""));
  ASSERT_OK_AND_ASSIGN(const std::string directory, received_->DirectoryOf("v"));
  EXPECT_TRUE(std::filesystem::is_empty(directory + "/x"));
}

TEST_F(ReceivedWeightsTest, AVersionHasNoMoreBytesThanItsModel) {
  constexpr int64_t kLimit = kModelBytes + ReceivedWeights::kOtherBytes;
  ASSERT_OK(Put("v", "a", "0123", 0, kLimit - 10));
  EXPECT_ERROR(Put("v", "b", "0123", 0, 11), kInvalidArgument,
               "file_bytes 11 of b and the 268436446 of the version's other files exceed");
  EXPECT_OK(Put("v", "b", "0123", 0, 10));
  EXPECT_OK(Put("v", "b", "45", 4, 10));
  EXPECT_ERROR(Put("v", "c", "0", 0, 1), kInvalidArgument, "of c");
  // Another version has as many of its own.
  EXPECT_OK(Put("w", "c", "0", 0, kLimit));
}

TEST_F(ReceivedWeightsTest, AVersionHasNoMoreFilesThanTheLimit) {
  for (size_t i = 0; i < ReceivedWeights::kMaxFiles; ++i)
    ASSERT_OK(Put("v", Concat("f", i), "0", 0, 2));
  EXPECT_ERROR(Put("v", "more", "0"), kInvalidArgument,
               "file \"more\": the version has 1024 files");
  EXPECT_OK(Put("v", "f7", "1", 1, 2));  // a file that is known goes on
}

TEST_F(ReceivedWeightsTest, AThirdVersionTakesThePlaceOfTheOneThatRestsLongest) {
  ASSERT_OK(Put("a", "x", "aa", 0, 4));
  ASSERT_OK(Put("b", "x", "bb", 0, 4));
  ASSERT_OK(Put("a", "x", "aa", 2, 4));
  ASSERT_OK(Put("c", "x", "cc", 0, 4));
  EXPECT_EQ(ReadReceived("a", "x"), "aaaa");
  EXPECT_ERROR(received_->DirectoryOf("b"), kNotFound, "\"b\"");
  EXPECT_EQ(BytesOnDisk(dir_.path()), 6);
  // Its sender learns that it must start over.
  EXPECT_ERROR(Put("b", "x", "bb", 2, 4), kOutOfRange, "but 0 of its 4 bytes have arrived");
  // However many come, two are held.
  for (int i = 0; i < 20; ++i) ASSERT_OK(Put(Concat("v", i), "x", "0123"));
  EXPECT_EQ(BytesOnDisk(dir_.path()), 8);
}

TEST_F(ReceivedWeightsTest, AFileOfAnotherSizeBeginsAnew) {
  ASSERT_OK(Put("v", "x", "0123"));
  ASSERT_OK_AND_ASSIGN(const int64_t here, Put("v", "x", "", 0, 5));
  EXPECT_EQ(here, 0);
  EXPECT_EQ(ReadReceived("v", "x"), "0123") << "asking changes nothing";
  ASSERT_OK(Put("v", "x", "abc", 0, 5));
  ASSERT_OK(Put("v", "x", "de", 3, 5));
  EXPECT_EQ(ReadReceived("v", "x"), "abcde");
}

TEST_F(ReceivedWeightsTest, AFileThatCannotGetItsNameBeginsAnew) {
  ASSERT_OK(Put("v", "other", "01"));
  ASSERT_OK_AND_ASSIGN(const std::string directory, received_->DirectoryOf("v"));
  std::filesystem::create_directory(directory + "/x");
  EXPECT_ERROR(Put("v", "x", "0123"), kInternal, "/x: Is a directory");
  std::filesystem::remove(directory + "/x");
  ASSERT_OK_AND_ASSIGN(const int64_t here, Put("v", "x", "", 0, 4));
  EXPECT_EQ(here, 0);
  ASSERT_OK(Put("v", "x", "0123"));
  EXPECT_EQ(ReadReceived("v", "x"), "0123");
}

TEST_F(ReceivedWeightsTest, NothingIsLeft) {
  ASSERT_OK(Put("v", "x", "0123"));
  received_->Clear();
  EXPECT_EQ(BytesOnDisk(dir_.path()), 0);
  EXPECT_ERROR(received_->DirectoryOf("v"), kNotFound, "\"v\"");
  ASSERT_OK(Put("v", "x", "01", 0, 4));
  received_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace taopd::testing
