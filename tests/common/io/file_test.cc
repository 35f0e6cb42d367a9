#include "common/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "common/io/atomic_file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace {
std::string_view unrenamable;  // a path that rename(2) refuses to rename
}  // namespace

// Replaces the C library's function in this program. Tests may run as root, whom no permission
// stops.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (from != unrenamable) return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
  errno = EPERM;
  return -1;
}

namespace taopd::testing {
namespace {

TEST(File, WritesReadsAndReplaces) {
  TempDir dir;
  const std::string binary("a\0b\nc", 5);
  ASSERT_OK(WriteFileAtomically(dir.File("f"), "first"));
  ASSERT_OK(WriteFileAtomically(dir.File("f"), binary));
  ASSERT_OK_AND_ASSIGN(const std::string content, ReadFileToString(dir.File("f")));
  EXPECT_EQ(content, binary);
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(dir.path()));
  EXPECT_THAT(names, ElementsAre("f"));  // no temporary file remains
}

TEST(File, ReadsAnySizeUpToTheLimit) {
  TempDir dir;
  std::string content;
  for (int i = 0; content.size() < (5 << 20); ++i) content += std::to_string(i);
  ASSERT_OK(WriteFileAtomically(dir.File("f"), content));
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFileToString(dir.File("f")));
  EXPECT_EQ(read, content);
  WriteFile(dir.File("f"), std::string(100, 'x'));
  EXPECT_OK(ReadFileToString(dir.File("f"), 100));
  EXPECT_ERROR(ReadFileToString(dir.File("f"), 99), kResourceExhausted, "limit of 99 bytes");
  // A file that has no size.
  ASSERT_OK_AND_ASSIGN(const std::string status, ReadFileToString("/proc/self/status"));
  EXPECT_THAT(status, HasSubstr("Name:"));
}

TEST(File, PiecesEndAtTheFirstError) {
  TempDir dir;
  WriteFile(dir.File("f"), std::string(5 << 20, 'x'));
  WriteFile(dir.File("empty"), "");
  int num_pieces = 0;
  const auto refuse = [&num_pieces](std::string_view bytes) {
    EXPECT_FALSE(bytes.empty());
    return ++num_pieces == 2 ? DataLoss("enough") : absl::OkStatus();
  };
  EXPECT_ERROR(ReadInPieces(dir.File("f"), refuse), kDataLoss, "enough");
  EXPECT_EQ(num_pieces, 2);
  EXPECT_OK(ReadInPieces(dir.File("empty"), refuse));
  EXPECT_EQ(num_pieces, 2);
}

TEST(File, ErrorsNameThePath) {
  TempDir dir;
  EXPECT_ERROR(ReadFileToString(dir.File("absent")), kNotFound, dir.File("absent"));
  EXPECT_ERROR(ListDirectory(dir.File("absent")), kNotFound, "absent");
  EXPECT_ERROR(SyncDirectory(dir.File("absent")), kNotFound, "absent");
  EXPECT_ERROR(WriteFileAtomically(dir.File("absent/f"), "x"), kNotFound, "absent/f");
  // These exist, so they must not pass for absent.
  std::filesystem::create_symlink("loop", dir.File("loop"));
  EXPECT_ERROR(ReadFileToString(dir.File("loop")), kInvalidArgument, "loop");
  EXPECT_ERROR(ReadFileToString(dir.path()), kInvalidArgument, dir.path());
  EXPECT_FALSE(WriteFileAtomically(dir.path(), "x").ok());  // a directory is not replaced
}

TEST(File, DirectoriesAreMadeAndListedInOrder) {
  TempDir dir;
  ASSERT_OK(MakeDirectories(dir.File("a/b/c")));
  ASSERT_OK(MakeDirectories(dir.File("a/b/c")));
  for (const char* name : {"z", "a", "m"}) WriteFile(dir.File("a/b/") + name, "");
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(dir.File("a/b")));
  EXPECT_THAT(names, ElementsAre("a", "c", "m", "z"));
  EXPECT_ERROR(MakeDirectories(dir.File("a/b/z/d")), kNotFound, "a/b/z/d");
  EXPECT_TRUE(FileExists(dir.File("a/b/z")));
  EXPECT_FALSE(FileExists(dir.File("a/b/y")));
}

TEST(File, ErrorsOfTheSystemHaveCodes) {
  const std::pair<int, absl::StatusCode> cases[] = {
      {ENOENT, kNotFound},          {EACCES, kPermissionDenied}, {ENAMETOOLONG, kInvalidArgument},
      {ENOSPC, kResourceExhausted}, {EMFILE, kUnavailable},      {EIO, kUnavailable},
  };
  for (const auto& [number, code] : cases) EXPECT_EQ(FileError("open", "f", number).code(), code);
}

class ReplacedDirectory : public ::testing::Test {
 protected:
  ReplacedDirectory() { std::filesystem::create_directory(path_); }
  // Writes a directory with one file, `name`.
  absl::Status Replace(const std::string& name) {
    return ReplaceDirectory(path_, [&name](const std::string& dir) {
      WriteFile(dir + "/" + name, name);
      return name == "bad" ? Unavailable("bad") : absl::OkStatus();
    });
  }
  std::vector<std::string> Names(const std::string& dir) { return ListDirectory(dir).value(); }

  TempDir dir_;
  const std::string path_ = dir_.File("d");
};

TEST_F(ReplacedDirectory, HasNothingOfWhatACrashLeft) {
  for (const char* left : {"d.new", "d.old"}) {
    std::filesystem::create_directory(dir_.File(left));
    WriteFile(dir_.File(left) + "/left", "");
  }
  for (const std::string name : {"one", "two"}) {
    ASSERT_OK(Replace(name));
    EXPECT_THAT(Names(path_), ElementsAre(name));
    EXPECT_THAT(Names(dir_.path()), ElementsAre("d"));
  }
  std::filesystem::remove_all(path_);
  ASSERT_OK(Replace("three"));
  EXPECT_THAT(Names(path_), ElementsAre("three"));
}

TEST_F(ReplacedDirectory, IsUnchangedIfTheNewOneIsNotComplete) {
  ASSERT_OK(Replace("one"));
  EXPECT_ERROR(Replace("bad"), kUnavailable, "bad");
  EXPECT_THAT(Names(path_), ElementsAre("one"));
  EXPECT_THAT(Names(dir_.path()), ElementsAre("d"));
}

TEST_F(ReplacedDirectory, IsPutBackIfTheNewOneCannotBeRenamed) {
  ASSERT_OK(Replace("one"));
  const std::string fresh = dir_.File("d.new");
  unrenamable = fresh;
  const absl::Status replaced = Replace("two");
  unrenamable = {};
  EXPECT_ERROR(replaced, kPermissionDenied, "d.new");
  EXPECT_THAT(Names(path_), ElementsAre("one"));
}

TEST(AtomicFile, NothingAppearsBeforeCommitOrAfterAbandoning) {
  TempDir dir;
  WriteFile(dir.File("f"), "old");
  {
    ASSERT_OK_AND_ASSIGN(auto file, AtomicFile::Create(dir.File("f")));
    ASSERT_OK(file->Write("new"));
    EXPECT_EQ(ReadFile(dir.File("f")), "old");
  }
  EXPECT_EQ(ReadFile(dir.File("f")), "old");
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(dir.path()));
  EXPECT_THAT(names, ElementsAre("f"));
}

TEST(AtomicFile, ModeFollowsTheUmask) {
  TempDir dir;
  const mode_t old_mask = umask(027);
  const absl::Status written = WriteFileAtomically(dir.File("f"), "x");
  umask(old_mask);
  ASSERT_OK(written);
  struct stat info;
  ASSERT_EQ(stat(dir.File("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST(AtomicFile, FullDeviceIsAnErrorWithTheReason) {
  const int fd = open("/dev/full", O_WRONLY);
  if (fd < 0) GTEST_SKIP() << "no /dev/full here";
  const std::string text = "x";
  EXPECT_ERROR(WriteAll(fd, std::as_bytes(std::span(text)), "/dev/full"), kResourceExhausted,
               "No space left");
  close(fd);
}

}  // namespace
}  // namespace taopd::testing
