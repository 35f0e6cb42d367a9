#include "trainer/teacher/cache/score_cache.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "trainer/teacher/cache/score_entry.h"

namespace taopd::testing {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 30;

std::vector<std::filesystem::path> EntriesOf(const TempDir& dir) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.File("cache"))) {
    const std::string folder = entry.path().parent_path().filename();
    if (entry.is_regular_file() && folder.size() == 2) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void PutExample(int index, ScoreCache* cache) {
  const TeacherRequest request = ExampleRequest(index);
  cache->Put(request, "rev-1", ExampleScores(request, ExampleInfo()));
}

bool FindsExample(int index, ScoreCache* cache) {
  const TeacherRequest request = ExampleRequest(index);
  const auto found = cache->Find(request, "rev-1");
  if (!found.has_value()) return false;
  const TeacherScores expected = ExampleScores(request, ExampleInfo());
  EXPECT_EQ(found->ids, expected.ids);
  EXPECT_EQ(found->log_probs, expected.log_probs);
  return true;
}

class ScoreCacheTest : public ::testing::Test {
 protected:
  // Opens the cache, again if it is open, as a later process does.
  void Open(int64_t max_bytes = kPlenty) {
    cache_.reset();
    ASSERT_OK_AND_ASSIGN(cache_, ScoreCache::Open(dir_.File("cache"), max_bytes));
  }
  const TempDir dir_;
  std::unique_ptr<ScoreCache> cache_;
};

TEST_F(ScoreCacheTest, KeepsScoresForLaterProcesses) {
  Open();
  EXPECT_FALSE(FindsExample(1, cache_.get()));
  for (int i = 0; i < 20; ++i) PutExample(i, cache_.get());
  EXPECT_TRUE(FindsExample(1, cache_.get()));
  EXPECT_EQ(cache_->stats().hits, 1u);
  EXPECT_EQ(cache_->stats().misses, 1u);
  EXPECT_EQ(cache_->size_bytes(), static_cast<int64_t>(cache_->stats().bytes_written));
  Open();
  EXPECT_GT(cache_->size_bytes(), 0);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(FindsExample(i, cache_.get()));
  EXPECT_FALSE(cache_->Find(ExampleRequest(1), "rev-2").has_value());
}

TEST_F(ScoreCacheTest, DamagedEntriesAreMissesAndGo) {
  Open();
  for (int i = 0; i < 4; ++i) PutExample(i, cache_.get());
  const auto files = EntriesOf(dir_);
  ASSERT_EQ(files.size(), 4u);
  std::string flipped = ReadFile(files[0]);
  flipped[flipped.size() / 2] ^= 16;
  WriteFile(files[0], flipped);
  std::filesystem::resize_file(files[1], 100);
  WriteFile(files[2], "");
  int num_found = 0;
  for (int i = 0; i < 4; ++i) num_found += FindsExample(i, cache_.get());
  EXPECT_EQ(num_found, 1);
  EXPECT_EQ(cache_->stats().damaged, 3u);
  EXPECT_EQ(cache_->stats().misses, 3u);
  EXPECT_EQ(EntriesOf(dir_).size(), 1u);
  for (int i = 0; i < 4; ++i) PutExample(i, cache_.get());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(FindsExample(i, cache_.get()));
}

TEST_F(ScoreCacheTest, AnEntryThatCannotBeReadIsAMissAndNotDamaged) {
  Open();
  PutExample(1, cache_.get());
  const auto files = EntriesOf(dir_);
  ASSERT_EQ(files.size(), 1u);
  // A directory opens like a file, but its bytes cannot be read.
  std::filesystem::remove(files[0]);
  std::filesystem::create_directories(files[0] / "so that its size is not 0");
  EXPECT_FALSE(FindsExample(1, cache_.get()));
  EXPECT_EQ(cache_->stats().misses, 1u);
  EXPECT_EQ(cache_->stats().damaged, 0u);
}

TEST_F(ScoreCacheTest, OldEntriesGoFirstAndAUseKeepsOne) {
  constexpr int kCount = 20;
  Open();
  for (int i = 0; i < kCount; ++i) PutExample(i, cache_.get());
  const int64_t entry_bytes = cache_->size_bytes() / kCount;
  // All are of an earlier process, and number 3 is used now.
  for (const auto& file : EntriesOf(dir_)) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(5));
  }
  Open(entry_bytes * kCount);
  EXPECT_EQ(cache_->stats().evicted, 0u);
  EXPECT_TRUE(FindsExample(3, cache_.get()));
  for (int i = 100; i < 110; ++i) PutExample(i, cache_.get());
  EXPECT_LE(cache_->size_bytes(), entry_bytes * kCount);
  EXPECT_GE(cache_->size_bytes(), entry_bytes * kCount * 8 / 10);
  EXPECT_LE(EntriesOf(dir_).size(), static_cast<size_t>(kCount));
  EXPECT_GE(cache_->stats().evicted, 10u);
  EXPECT_TRUE(FindsExample(3, cache_.get()));
  for (int i = 100; i < 110; ++i) EXPECT_TRUE(FindsExample(i, cache_.get()));
  EXPECT_EQ(cache_->stats().evicted_new, 0u);
  for (int i = 110; i < 150; ++i) PutExample(i, cache_.get());
  EXPECT_GT(cache_->stats().evicted_new, 0u);
}

TEST_F(ScoreCacheTest, EntriesThatCannotBeDeletedStillCount) {
  constexpr int kCount = 10;
  Open();
  for (int i = 0; i < kCount; ++i) PutExample(i, cache_.get());
  const int64_t num_bytes = cache_->size_bytes();
  // The oldest entry is a directory.
  const std::filesystem::path stuck = dir_.File("cache/00/" + std::string(62, '0'));
  std::filesystem::create_directories(stuck);
  for (int i = 0; i < 100; ++i) WriteFile(stuck / Concat("long-name-", i), "");
  std::filesystem::last_write_time(
      stuck, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24));
  struct stat about {};
  ASSERT_EQ(::stat(stuck.c_str(), &about), 0);
  ::testing::internal::CaptureStderr();
  Open(num_bytes);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("cannot be trimmed"));
  EXPECT_EQ(cache_->stats().failed_trims, 1u);
  EXPECT_GT(cache_->stats().evicted, 0u);
  int64_t expected = about.st_size;
  for (const auto& file : EntriesOf(dir_))
    expected += static_cast<int64_t>(std::filesystem::file_size(file));
  EXPECT_EQ(cache_->size_bytes(), expected);
}

TEST_F(ScoreCacheTest, FilesOfTheUserStay) {
  const std::string digits(62, 'a');
  for (const std::string& name : {"en/" + digits, "ab/" + digits + "a", "ab/g" + digits.substr(1),
                                  std::string("ab/notes.tmp.1"), "ab/" + digits}) {
    const std::filesystem::path path = dir_.File("cache/" + name);
    std::filesystem::create_directories(path.parent_path());
    WriteFile(path, "text");
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24));
  }
  Open(/*max_bytes=*/1);
  EXPECT_EQ(EntriesOf(dir_).size(), 4u) << "only the last has the name of an entry";
}

TEST_F(ScoreCacheTest, ALockThatCannotBeTakenIsReportedAndTriedSeldom) {
  std::filesystem::create_directories(dir_.File("cache/lock"));
  ::testing::internal::CaptureStderr();
  Open(40'000);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the score cache cannot be trimmed"));
  EXPECT_THAT(log, HasSubstr("cache/lock"));
  int num_puts = 0;
  for (; cache_->size_bytes() < 60'000; ++num_puts) PutExample(num_puts, cache_.get());
  EXPECT_GE(cache_->stats().failed_trims, 3u);
  EXPECT_LE(cache_->stats().failed_trims, 31u) << "after another twentieth each, in " << num_puts;
}

// As for several teachers, ranks or runs. Each object writes less than the limit.
TEST_F(ScoreCacheTest, SeveralWritersKeepTheLimitTogether) {
  constexpr int kCount = 40, kWriters = 4;
  const std::string entry = MakeScoreEntry("", ExampleScores(ExampleRequest(0), ExampleInfo()));
  std::vector<std::unique_ptr<ScoreCache>> caches;
  for (int i = 0; i < kWriters; ++i) {
    Open(kCount * static_cast<int64_t>(entry.size()));
    caches.push_back(std::move(cache_));
  }
  for (int i = 0; i < kCount * (kWriters - 1); ++i) PutExample(i, caches[i % kWriters].get());
  EXPECT_LE(EntriesOf(dir_).size(), size_t{kCount * 3 / 2});
}

// Processes that write, read and delete the same entries: each finds either nothing or what is
// right.
TEST_F(ScoreCacheTest, ProcessesShareTheDirectory) {
  constexpr int kProcesses = 4, kRounds = 60;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto cache = ScoreCache::Open(dir_.File("cache"), 8 * 1024);
      bool good = cache.ok();
      for (int i = 0; good && i < kRounds; ++i) {
        PutExample((i * 7 + p) % 40, cache->get());
        FindsExample((i * 11 + p) % 40, cache->get());
      }
      good = good && (*cache)->stats().damaged == 0 && (*cache)->stats().failed_writes == 0 &&
             (*cache)->stats().failed_trims == 0 && !::testing::Test::HasFailure();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (const auto& file : EntriesOf(dir_))
    EXPECT_EQ(file.string().find(".tmp."), std::string::npos);
}

TEST_F(ScoreCacheTest, ADirectoryThatCannotBeWrittenDoesNotEndARun) {
  WriteFile(dir_.File("file"), "");
  EXPECT_FALSE(ScoreCache::Open(dir_.File("file"), kPlenty).ok());
  Open();
  // A file where the folder of an entry should be.
  const std::string key = ScoreKey(ExampleRequest(1), "rev-1");
  WriteFile(dir_.File("cache/" + key.substr(0, 2)), "");
  PutExample(1, cache_.get());
  EXPECT_EQ(cache_->stats().failed_writes, 1u);
  EXPECT_FALSE(FindsExample(1, cache_.get()));
}

TEST_F(ScoreCacheTest, RemembersTeachers) {
  Open();
  TeacherInfo info = ExampleInfo();
  info.tokenizer_hash = "abc";
  info.sends_tail = false;
  EXPECT_ERROR(cache_->FindTeacher({"grpc://a:1"}, ""), kNotFound, "");
  info.eos_token_ids = {7, 9};
  ASSERT_OK(cache_->PutTeacher({"grpc://a:1", "grpc://b:1"}, "", info));
  ASSERT_OK_AND_ASSIGN(const TeacherInfo found,
                       cache_->FindTeacher({"grpc://b:1", "grpc://a:1"}, ""));
  EXPECT_EQ(found.model_name, info.model_name);
  EXPECT_EQ(found.revision, info.revision);
  EXPECT_EQ(found.tokenizer_hash, "abc");
  EXPECT_EQ(found.eos_token_ids, info.eos_token_ids);
  EXPECT_EQ(found.head_vocab_size, info.head_vocab_size);
  EXPECT_EQ(found.max_model_len, info.max_model_len);
  EXPECT_EQ(found.max_top_k, info.max_top_k);
  EXPECT_EQ(found.max_candidates, info.max_candidates);
  EXPECT_EQ(found.max_dense_vocab_size, info.max_dense_vocab_size);
  EXPECT_FALSE(found.sends_tail);
  EXPECT_TRUE(found.supports_entropy);
  EXPECT_ERROR(cache_->FindTeacher({"grpc://b:1", "grpc://a:1"}, "z"), kNotFound, "");
  ASSERT_OK(cache_->PutTeacher({"grpc://a:1"}, "m", info));
  info.max_top_k = 1;
  for (const auto& [canary, expected] : {std::pair("", found.max_top_k), {"other weights", 1}}) {
    info.canary = canary;
    ASSERT_OK(cache_->PutTeacher({"grpc://a:1"}, "m", info));
    EXPECT_EQ(cache_->FindTeacher({"grpc://a:1"}, "m")->max_top_k, expected) << canary;
  }
}

}  // namespace
}  // namespace taopd::testing
