#include "trainer/checkpoint/checkpoint_store.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "trainer/checkpoint/manifest.h"

namespace taopd {
namespace {

namespace fs = std::filesystem;

constexpr char kTemporaryPrefix[] = ".tmp-";
constexpr char kTrashPrefix[] = ".trash-";
constexpr char kMiniBatchInfix[] = "-mini-";

std::string StepName(int64_t step, int64_t mini_batch) {
  const std::string name = absl::StrFormat("step-%06d", step);
  return mini_batch == 0 ? name : Concat(name, kMiniBatchInfix, mini_batch);
}

// Returns the step and the mini-batch in a checkpoint's name, or nullopt for any other name.
std::optional<std::pair<int64_t, int64_t>> PositionOfName(const std::string& name) {
  constexpr size_t kPrefixSize = sizeof("step-") - 1, kInfixSize = sizeof(kMiniBatchInfix) - 1;
  int64_t step = -1, mini_batch = 0;
  if (name.size() <= kPrefixSize) return std::nullopt;
  const char* end = name.data() + name.size();
  const char* step_end = std::from_chars(name.data() + kPrefixSize, end, step).ptr;
  if (end - step_end > static_cast<std::ptrdiff_t>(kInfixSize))
    std::from_chars(step_end + kInfixSize, end, mini_batch);
  if (step < 0 || mini_batch < 0 || StepName(step, mini_batch) != name) return std::nullopt;
  return std::pair(step, mini_batch);
}

// A temporary directory with a lock that its writer holds as long as it lives. The process id alone
// does not identify the writer: ids are reused, and containers see different ones.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(const std::string& path) {
    TAOPD_RETURN_IF_ERROR(RemoveAll(path));
    if (mkdir(path.c_str(), 0755) != 0) return FileError("create", path, errno);
    FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return FileError("open", path, errno);
    // Without locks in the file system, the process id must suffice.
    flock(fd.get(), LOCK_EX | LOCK_NB);
    return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(path, std::move(fd)));
  }
  ~TemporaryDirectory() {
    fd_.Close();
    if (is_kept_) return;
    const absl::Status status = RemoveAll(path_);
    if (!status.ok())
      LogWarning("a temporary checkpoint could not be removed", {{"error", status}});
  }
  void Keep() { is_kept_ = true; }
  const std::string& path() const { return path_; }

  // Returns whether no writer can be using the directory.
  static bool IsAbandoned(const std::string& path) {
    const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return false;
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EWOULDBLOCK) return false;
    const size_t dash = path.rfind('-');
    const pid_t pid = std::atoi(path.c_str() + dash + 1);
    return pid > 0 && (pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH));
  }

 private:
  TemporaryDirectory(std::string path, FileDescriptor fd)
      : path_(std::move(path)), fd_(std::move(fd)) {}
  const std::string path_;
  FileDescriptor fd_;
  bool is_kept_ = false;
};

}  // namespace

absl::StatusOr<std::vector<CheckpointRef>> ListCheckpoints(const std::string& dir) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
  std::vector<CheckpointRef> all;
  for (const std::string& name : names) {
    const auto position = PositionOfName(name);
    std::error_code error;
    if (position.has_value() && fs::is_directory(dir + "/" + name, error)) {
      all.push_back({position->first, position->second, dir + "/" + name});
    }
  }
  std::ranges::sort(all, [](const auto& a, const auto& b) {
    return std::pair(a.step, a.mini_batch) < std::pair(b.step, b.mini_batch);
  });
  return all;
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(
    const std::string& dir, const CheckpointOptions& options) {
  if (options.keep_last < 2) {
    return InvalidArgument("keep_last ", options.keep_last,
                           " is below 2: the newest checkpoint may be the damaged one");
  }
  if (options.keep_every < 0) {
    return InvalidArgument("keep_every ", options.keep_every, " is negative");
  }
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir));
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(dir, options));
  TAOPD_RETURN_IF_ERROR(store->RemoveLeftovers());
  return store;
}

absl::Status CheckpointStore::RemoveLeftovers() {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir_));
  for (const std::string& name : names) {
    const std::string path = dir_ + "/" + name;
    const bool is_leftover =
        name.starts_with(kTrashPrefix) ||
        (name.starts_with(kTemporaryPrefix) && TemporaryDirectory::IsAbandoned(path));
    if (!is_leftover) continue;
    LogInfo("removing a leftover of an earlier process", {{"path", path}});
    TAOPD_RETURN_IF_ERROR(RemoveAll(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStore::Save(
    int64_t step, const std::function<absl::Status(const std::string& temporary_dir)>& write,
    int64_t mini_batch) {
  if (step < 0) return InvalidArgument("checkpoint step ", step, " is negative");
  const std::string name = StepName(step, mini_batch), path = Concat(dir_, "/", name);
  if (FileExists(path)) {
    const absl::Status status = VerifyCheckpoint(path, step, /*hashes=*/true);
    if (status.ok()) return path;
    RecordDamage(path, status);
    TAOPD_RETURN_IF_ERROR(MoveAside(path));
  }
  TAOPD_ASSIGN_OR_RETURN(
      const auto temporary,
      TemporaryDirectory::Make(Concat(dir_, "/", kTemporaryPrefix, name, "-", getpid())));
  TAOPD_RETURN_IF_ERROR(Annotate(write(temporary->path()), Concat("checkpoint of step ", step)));
  TAOPD_RETURN_IF_ERROR(WriteManifest(temporary->path(), step));
  TAOPD_RETURN_IF_ERROR(RenamePath(temporary->path(), path));
  temporary->Keep();
  // The checkpoint exists from here on, even if something below fails.
  TAOPD_RETURN_IF_ERROR(SyncDirectory(dir_));
  const absl::Status status = DeleteOld(path);
  if (!status.ok()) LogError("old checkpoints could not be deleted", {{"error", status}});
  return path;
}

absl::StatusOr<std::optional<CheckpointRef>> CheckpointStore::Newest(int64_t max_step) {
  TAOPD_ASSIGN_OR_RETURN(std::vector<CheckpointRef> all, List());
  const bool is_limited = max_step != INT64_MAX;
  std::erase_if(all, [&](const CheckpointRef& ref) {
    return ref.step > max_step || (is_limited && ref.mini_batch > 0);
  });
  absl::Status first_error;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const absl::Status status = VerifyCheckpoint(it->path, it->step, /*hashes=*/true);
    if (status.ok()) return *it;
    RecordDamage(it->path, status);
    first_error.Update(status);
  }
  if (all.empty()) return std::nullopt;
  return DataLoss("all ", all.size(), " checkpoints in ", dir_,
                  " are damaged; the newest: ", first_error.message());
}

absl::Status CheckpointStore::DeleteAfter(int64_t step) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<CheckpointRef> all, List());
  // Deletes the newest first, so that a crash leaves no gap.
  const auto is_later = [step](const CheckpointRef& checkpoint) {
    return checkpoint.step > step || (checkpoint.step == step && checkpoint.mini_batch > 0);
  };
  for (auto it = all.rbegin(); it != all.rend() && is_later(*it); ++it) {
    TAOPD_RETURN_IF_ERROR(Delete(it->path));
  }
  return absl::OkStatus();
}

void CheckpointStore::RecordDamage(const std::string& path, const absl::Status& status) {
  if (damaged_.insert(path).second) {
    LogError("damaged checkpoint", {{"path", path}, {"error", status}});
  }
}

// Frees the name of a damaged checkpoint whose step is saved again.
absl::Status CheckpointStore::MoveAside(const std::string& path) {
  for (int64_t n = 1;; ++n) {
    const std::string aside = Concat(dir_, "/damaged-", fs::path(path).filename().string(), "-", n);
    if (FileExists(aside)) continue;
    LogWarning("damaged checkpoint is moved aside", {{"to", aside}});
    TAOPD_RETURN_IF_ERROR(RenamePath(path, aside));
    damaged_.erase(path);
    return absl::OkStatus();
  }
}

// Applies the retention rules. Damaged checkpoints are neither deleted nor counted as kept. They
// are recognized by sizes only, since hashing every old checkpoint at every save would cost more
// than the save. `just_saved` stays even if there are newer steps (a run that went back).
absl::Status CheckpointStore::DeleteOld(const std::string& just_saved) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<CheckpointRef> all, List());
  int64_t num_kept = 0;  // checkpoints between two steps
  bool is_newest = true;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (damaged_.contains(it->path)) continue;
    const absl::Status status = VerifyCheckpoint(it->path, it->step, /*hashes=*/false);
    if (!status.ok()) {
      RecordDamage(it->path, status);
      continue;
    }
    const bool was_newest = std::exchange(is_newest, false);
    if (it->mini_batch > 0) {
      if (!was_newest && it->path != just_saved) TAOPD_RETURN_IF_ERROR(Delete(it->path));
      continue;
    }
    const bool is_milestone = options_.keep_every > 0 && it->step % options_.keep_every == 0;
    if (num_kept++ < options_.keep_last || is_milestone || it->path == just_saved ||
        pinned_steps_.contains(it->step)) {
      continue;
    }
    TAOPD_RETURN_IF_ERROR(Delete(it->path));
  }
  return absl::OkStatus();
}

// Renames the directory first, because half a deletion must not look like a damaged checkpoint.
absl::Status CheckpointStore::Delete(const std::string& path) {
  const std::string trash =
      Concat(dir_, "/", kTrashPrefix, fs::path(path).filename().string(), "-", getpid());
  TAOPD_RETURN_IF_ERROR(RemoveAll(trash));  // left by a deletion that failed half-way
  TAOPD_RETURN_IF_ERROR(RenamePath(path, trash));
  damaged_.erase(path);
  TAOPD_RETURN_IF_ERROR(SyncDirectory(dir_));
  return RemoveAll(trash);
}

}  // namespace taopd
