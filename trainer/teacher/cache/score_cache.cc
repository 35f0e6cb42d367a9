#include "trainer/teacher/cache/score_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/io/sha256.h"
#include "trainer/teacher/cache/score_entry.h"

namespace taopd {
namespace {

constexpr size_t kFolderDigits = 2;
constexpr size_t kNameDigits = 62;
constexpr char kTeachersFolder[] = "teachers";
constexpr char kTemporaryMark[] = ".tmp.";
constexpr time_t kUseStampIntervalS = 3600;
constexpr time_t kMaxTemporaryFileAgeS = 3600;
constexpr double kShareAfterTrimming = 0.9;
// The entries are measured again when this object has written this share of the limit, because
// others write, too, and because a trim may have failed.
constexpr double kShareBetweenTrims = 0.05;

struct CacheFile {
  std::string path;
  int64_t bytes;
  timespec used;
};

bool IsOlder(const CacheFile& a, const CacheFile& b) {
  if (a.used.tv_sec != b.used.tv_sec) return a.used.tv_sec < b.used.tv_sec;
  return a.used.tv_nsec < b.used.tv_nsec;
}

bool IsHex(std::string_view text, size_t num_digits) {
  return text.size() == num_digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns the entries of the cache. Deletes its temporary files of dead processes.
std::vector<CacheFile> ListEntries(const std::string& dir) {
  std::vector<CacheFile> files;
  const auto folders = ListDirectory(dir);
  if (!folders.ok()) return files;
  for (const std::string& folder : *folders) {
    if (!IsHex(folder, kFolderDigits)) continue;
    const auto names = ListDirectory(dir + "/" + folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const size_t mark = name.find(kTemporaryMark);
      if (!IsHex(std::string_view(name).substr(0, mark), kNameDigits)) continue;
      CacheFile file{Concat(dir, "/", folder, "/", name), 0, {}};
      struct stat about {};
      if (::stat(file.path.c_str(), &about) != 0) continue;  // another process has deleted it
      if (mark != std::string::npos) {
        if (::time(nullptr) - about.st_mtime > kMaxTemporaryFileAgeS) ::unlink(file.path.c_str());
        continue;
      }
      file.bytes = about.st_size;
      file.used = about.st_mtim;
      files.push_back(std::move(file));
    }
  }
  return files;
}

// Returns the bytes of an open file, or none if it has become shorter meanwhile. Renews its time
// stamp if that is older than kUseStampIntervalS or than `opened_s`.
absl::StatusOr<std::string_view> ReadEntry(int fd, const std::string& path, time_t opened_s,
                                           std::vector<char>* scratch) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return FileError("read", path, errno);
  const auto size = static_cast<size_t>(about.st_size);
  if (scratch->size() < size) scratch->resize(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t count =
        ::pread(fd, scratch->data() + done, size - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("read", path, errno);
    if (count == 0) return std::string_view();
    done += static_cast<size_t>(count);
  }
  if (about.st_mtime < std::max(opened_s, ::time(nullptr) - kUseStampIntervalS))
    ::futimens(fd, nullptr);
  return std::string_view(scratch->data(), size);
}

// Calls visit(name, member) for each member of a TeacherInfo that is stored.
template <typename Info, typename Visit>
void ForEachMember(Info& info, const Visit& visit) {
  visit("model_name", info.model_name);
  visit("revision", info.revision);
  visit("tokenizer_hash", info.tokenizer_hash);
  visit("eos_token_ids", info.eos_token_ids);
  visit("head_vocab_size", info.head_vocab_size);
  visit("max_model_len", info.max_model_len);
  visit("max_top_k", info.max_top_k);
  visit("max_candidates", info.max_candidates);
  visit("max_dense_vocab_size", info.max_dense_vocab_size);
  visit("supports_temperature", info.supports_temperature);
  visit("supports_entropy", info.supports_entropy);
  visit("sends_tail", info.sends_tail);
  visit("canary", info.canary);
}

std::string TeacherFileName(const std::vector<std::string>& endpoints, const std::string& model) {
  std::vector<std::string> sorted = endpoints;
  std::ranges::sort(sorted);
  std::string text;
  for (const std::string& endpoint : sorted) text += endpoint + "\n";
  if (!model.empty()) text += "model " + model + "\n";
  return Sha256Hex(text) + ".json";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScoreCache>> ScoreCache::Open(const std::string& dir,
                                                             int64_t max_bytes) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir + "/" + kTeachersFolder));
  std::unique_ptr<ScoreCache> cache(new ScoreCache(dir, max_bytes));
  cache->Trim();
  return cache;
}

std::string ScoreCache::PathOf(const std::string& key) const {
  return Concat(dir_, "/", key.substr(0, kFolderDigits), "/", key.substr(kFolderDigits));
}

std::optional<TeacherScores> ScoreCache::Find(const TeacherRequest& request,
                                              const std::string& identity) {
  const std::string key = ScoreKey(request, identity);
  const std::string path = PathOf(key);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    absl::MutexLock lock(&mutex_);
    ++stats_.misses;
    return std::nullopt;
  }
  static thread_local std::vector<char> scratch;
  const absl::StatusOr<std::string_view> bytes = ReadEntry(file.get(), path, opened_s_, &scratch);
  if (!bytes.ok()) {
    // The entry may be good, and other runs may read it.
    LogWarning("an entry of the score cache cannot be read", {{"error", bytes.status()}});
    absl::MutexLock lock(&mutex_);
    ++stats_.misses;
    return std::nullopt;
  }
  absl::StatusOr<TeacherScores> scores =
      ParseScoreEntry(std::as_bytes(std::span(*bytes)), key, request);
  absl::MutexLock lock(&mutex_);
  if (scores.ok()) {
    ++stats_.hits;
    return *std::move(scores);
  }
  ++stats_.misses;
  ++stats_.damaged;
  LogWarning("damaged entry of the score cache", {{"file", path}, {"error", scores.status()}});
  ::unlink(path.c_str());
  return std::nullopt;
}

void ScoreCache::Put(const TeacherRequest& request, const std::string& identity,
                     const TeacherScores& scores) {
  const std::string key = ScoreKey(request, identity);
  const std::string bytes = MakeScoreEntry(key, scores);
  const absl::Status written = Write(key, bytes);
  bool is_full = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!written.ok()) {
      if (stats_.failed_writes++ == 0) {
        LogWarning("the score cache cannot be written; the run continues without new entries",
                   {{"error", written}});
      }
      return;
    }
    stats_.bytes_written += bytes.size();
    size_bytes_ += static_cast<int64_t>(bytes.size());
    is_full = size_bytes_ > trim_above_bytes_;
  }
  if (is_full) Trim();
}

absl::Status ScoreCache::Write(const std::string& key, const std::string& bytes) {
  const std::string path = PathOf(key);
  std::string temporary;
  {
    absl::MutexLock lock(&mutex_);
    temporary = Concat(path, kTemporaryMark, ::getpid(), ".", ++num_temporary_);
  }
  int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == ENOENT) {
    TAOPD_RETURN_IF_ERROR(MakeDirectories(path.substr(0, path.rfind('/'))));
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  }
  if (fd < 0) return FileError("create", temporary, errno);
  absl::Status status;
  {
    const FileDescriptor file(fd);
    status = WriteAll(fd, std::as_bytes(std::span(bytes)), temporary);
  }
  if (status.ok()) status = RenamePath(temporary, path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

void ScoreCache::Trim() {
  const absl::Status trimmed = DeleteOldEntries();
  absl::MutexLock lock(&mutex_);
  trim_above_bytes_ =
      size_bytes_ + static_cast<int64_t>(static_cast<double>(max_bytes_) * kShareBetweenTrims);
  if (size_bytes_ <= max_bytes_) trim_above_bytes_ = std::min(trim_above_bytes_, max_bytes_);
  if (!trimmed.ok() && stats_.failed_trims++ == 0) {
    LogWarning("the score cache cannot be trimmed; it may exceed its limit",
               {{"limit_bytes", max_bytes_}, {"error", trimmed}});
  }
}

absl::Status ScoreCache::DeleteOldEntries() {
  // Only one process trims at a time. Others find less to delete when it is their turn.
  const std::string lock_path = dir_ + "/lock";
  const FileDescriptor lock_file(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock_file.get() < 0) return FileError("open", lock_path, errno);
  if (::flock(lock_file.get(), LOCK_EX) != 0) return FileError("lock", lock_path, errno);
  std::vector<CacheFile> files = ListEntries(dir_);
  int64_t total = 0;
  for (const CacheFile& file : files) total += file.bytes;
  uint64_t num_evicted = 0, num_new = 0;
  absl::Status status;
  if (total > max_bytes_) {
    std::ranges::sort(files, IsOlder);
    const auto goal = static_cast<int64_t>(static_cast<double>(max_bytes_) * kShareAfterTrimming);
    for (const CacheFile& file : files) {
      if (total <= goal) break;
      if (::unlink(file.path.c_str()) == 0) {
        ++num_evicted;
        num_new += file.used.tv_sec >= opened_s_;
      } else if (errno != ENOENT) {
        status.Update(FileError("delete", file.path, errno));
        continue;
      }
      total -= file.bytes;
    }
  }
  absl::MutexLock lock(&mutex_);
  size_bytes_ = total;
  stats_.evicted += num_evicted;
  stats_.evicted_new += num_new;
  return status;
}

absl::StatusOr<TeacherInfo> ScoreCache::FindTeacher(const std::vector<std::string>& endpoints,
                                                    const std::string& model) const {
  const std::string path =
      Concat(dir_, "/", kTeachersFolder, "/", TeacherFileName(endpoints, model));
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  try {
    TeacherInfo info;
    ForEachMember(info, [&json](const char* name, auto& member) { json.at(name).get_to(member); });
    return info;
  } catch (const nlohmann::json::exception& error) {
    return DataLoss(path, ": ", error.what());
  }
}

absl::Status ScoreCache::PutTeacher(const std::vector<std::string>& endpoints,
                                    const std::string& model, TeacherInfo info) const {
  const absl::StatusOr<TeacherInfo> known = FindTeacher(endpoints, model);
  if (known.ok() && known->Identity() == info.Identity())
    info.max_top_k = std::max(info.max_top_k, known->max_top_k);
  nlohmann::ordered_json json = {{"endpoints", endpoints}};
  ForEachMember(info, [&json](const char* name, const auto& member) { json[name] = member; });
  return WriteFileAtomically(
      Concat(dir_, "/", kTeachersFolder, "/", TeacherFileName(endpoints, model)),
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

ScoreCacheStats ScoreCache::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

int64_t ScoreCache::size_bytes() const {
  absl::MutexLock lock(&mutex_);
  return size_bytes_;
}

}  // namespace taopd
