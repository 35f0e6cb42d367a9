#include "trainer/run/run_directory.h"

#include <filesystem>

#include "common/base/log.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"

namespace taopd {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigFile[] = "config.yaml";
constexpr char kReplacedDir[] = ".replaced";  // to be deleted
constexpr char kKeptDir[] = ".kept";          // to become earlier-1, earlier-2, ...
constexpr char kEarlier[] = "earlier-";

// The entries of a run: the trainer's own files, then those of an evaluation, a report and
// deploy/quickstart. config.yaml is the first to be moved away and the last to be restored: while
// it is absent, the old run is not yet replaced.
constexpr const char* kRunEntries[] = {
    kConfigFile,      "checkpoints",      "metrics.jsonl",      "samples.jsonl", "tensorboard",
    "model",          "bad_batches",      "best.json",          "events.jsonl",  "rollbacks.json",
    "rollouts.jsonl", "rollouts.1.jsonl", "trace.json",         "evaluation",    "summary.json",
    "report.html",    "fingerprint",      "evaluation_journal", "continued",
};

bool Exists(const std::string& path) {
  std::error_code error;  // a dangling link exists as well
  return fs::exists(fs::symlink_status(path, error));
}

// A start that failed early leaves an empty record, which needs no protection.
bool HoldsRun(const std::string& run_dir) {
  std::error_code error;
  const std::string metrics = run_dir + "/metrics.jsonl", checkpoints = run_dir + "/checkpoints";
  if (fs::exists(metrics, error) && fs::file_size(metrics, error) > 0) return true;
  return fs::exists(checkpoints, error) && !fs::is_empty(checkpoints, error);
}

// Refuses a directory whose files have the names of a run's files but come from somewhere else.
absl::Status CheckNotForeign(const std::string& run_dir) {
  const bool is_run = Exists(run_dir + "/run.lock") &&
                      (Exists(run_dir + "/metrics.jsonl") || Exists(run_dir + "/checkpoints") ||
                       Exists(run_dir + "/" + kReplacedDir) || Exists(run_dir + "/" + kKeptDir));
  if (is_run) return absl::OkStatus();
  for (const char* name : kRunEntries) {
    if (!Exists(run_dir + "/" + name)) continue;
    return FailedPrecondition("run.dir ", run_dir, " holds ", name,
                              ", which no run has made and which a run would replace: choose "
                              "another run.dir");
  }
  return absl::OkStatus();
}

// Returns whether an aborted run has left anything of interest: a nonempty file besides those that
// every start writes.
bool HoldsAnything(const std::string& run_dir) {
  for (const std::string name : kRunEntries) {
    if (name == kConfigFile || name == "tensorboard" || name == "fingerprint") continue;
    if (BytesOnDisk(run_dir + "/" + name) > 0) return true;
  }
  return false;
}

// Moves the old run back over the files of a new one.
absl::Status PutBack(const std::string& run_dir, const std::string& replaced) {
  for (auto name = std::rbegin(kRunEntries); name != std::rend(kRunEntries); ++name) {
    const std::string aside = replaced + "/" + *name, path = run_dir + "/" + *name;
    if (!Exists(aside)) continue;
    TAOPD_RETURN_IF_ERROR(RemoveAll(path));
    TAOPD_RETURN_IF_ERROR(RenamePath(aside, path));
  }
  TAOPD_RETURN_IF_ERROR(RemoveAll(replaced));
  return SyncDirectory(run_dir);
}

// Gives RUN_DIR/.kept its permanent name.
absl::Status NameKept(const std::string& run_dir) {
  int64_t number = 1;
  while (Exists(Concat(run_dir, "/", kEarlier, number))) ++number;
  const std::string earlier = Concat(run_dir, "/", kEarlier, number);
  TAOPD_RETURN_IF_ERROR(RenamePath(run_dir + "/" + kKeptDir, earlier));
  LogInfo("the files of an earlier run are kept", {{"dir", earlier}});
  return SyncDirectory(run_dir);
}

// Cleans up after a process that ended while it replaced a run.
absl::Status Recover(const std::string& run_dir) {
  const bool has_begun = Exists(run_dir + "/" + kConfigFile);
  for (const char* name : {kReplacedDir, kKeptDir}) {
    const std::string aside = run_dir + "/" + name;
    if (!Exists(aside)) continue;
    if (!has_begun) {
      LogWarning("restoring a run that was not yet replaced", {{"dir", run_dir}});
      TAOPD_RETURN_IF_ERROR(PutBack(run_dir, aside));
    } else {
      TAOPD_RETURN_IF_ERROR(std::string_view(name) == kKeptDir ? NameKept(run_dir)
                                                               : RemoveAll(aside));
    }
  }
  return absl::OkStatus();
}

absl::Status NothingToResume(const std::string& run_dir) {
  return FailedPrecondition("run.dir ", run_dir,
                            " holds no checkpoint, so there is nothing to resume: leave out "
                            "--resume, or start a new run with --resume=auto, which resumes where "
                            "it can");
}

// Refuses to replace the run whose files are in `files_dir` unless `mode` allows it.
absl::Status CheckMayStart(const std::string& run_dir, const std::string& files_dir,
                           const StartMode& mode) {
  if (mode.resume || mode.overwrite || !HoldsRun(files_dir)) return absl::OkStatus();
  return FailedPrecondition("run.dir ", run_dir,
                            " holds a run already: continue it with --resume, replace it with "
                            "--overwrite, or choose another run.dir");
}

}  // namespace

absl::Status RunDirectory::Check(const std::string& path, const StartMode& mode) {
  TAOPD_RETURN_IF_ERROR(CheckNotForeign(path));
  TAOPD_RETURN_IF_ERROR(RunLock::CheckFree(path));
  // Open would put back a run that a crash has left aside.
  const bool is_aside = !Exists(path + "/" + kConfigFile);
  for (const char* name : {kReplacedDir, kKeptDir}) {
    if (is_aside) TAOPD_RETURN_IF_ERROR(CheckMayStart(path, path + "/" + name, mode));
  }
  return CheckMayStart(path, path, mode);
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Open(const std::string& path,
                                                                 const StartMode& mode,
                                                                 const CheckpointOptions& options) {
  TAOPD_RETURN_IF_ERROR(CheckNotForeign(path));
  // Leaves nothing behind, not even the lock, where no run has ever been.
  if (mode.resume && !mode.may_start && !Exists(path + "/run.lock")) return NothingToResume(path);
  std::unique_ptr<RunDirectory> directory(new RunDirectory(path, options));
  TAOPD_ASSIGN_OR_RETURN(directory->lock_, RunLock::Acquire(path));
  TAOPD_RETURN_IF_ERROR(Recover(path));
  TAOPD_RETURN_IF_ERROR(CheckMayStart(path, path, mode));
  if (mode.resume && Exists(path + "/checkpoints")) {
    TAOPD_ASSIGN_OR_RETURN(CheckpointStore * store, directory->Checkpoints());
    TAOPD_ASSIGN_OR_RETURN(directory->checkpoint_, store->Newest());
  }
  if (mode.resume && !directory->checkpoint_) {
    if (!mode.may_start) return NothingToResume(path);
    LogInfo("there is nothing to resume: a new run starts", {{"dir", path}});
    directory->keeps_old_run_ = HoldsAnything(path);
  }
  return directory;
}

RunDirectory::~RunDirectory() {
  if (!old_run_is_aside_) return;
  const absl::Status status = PutBack(path_, AsideDir());
  if (!status.ok())
    LogError("the old run was not restored; the next start restores it", {{"error", status}});
}

std::string RunDirectory::AsideDir() const {
  return path_ + "/" + (keeps_old_run_ ? kKeptDir : kReplacedDir);
}

absl::Status RunDirectory::MoveOldRunAside() {
  store_.reset();
  const std::string aside = AsideDir();
  TAOPD_RETURN_IF_ERROR(MakeDirectories(aside));
  old_run_is_aside_ = true;
  for (const char* name : kRunEntries) {
    const std::string entry = path_ + "/" + name;
    if (Exists(entry)) TAOPD_RETURN_IF_ERROR(RenamePath(entry, aside + "/" + name));
  }
  return SyncDirectory(path_);
}

void RunDirectory::DeleteOldRun() {
  old_run_is_aside_ = false;
  const absl::Status status = keeps_old_run_ ? NameKept(path_) : RemoveAll(AsideDir());
  if (status.ok()) return;
  LogWarning(keeps_old_run_ ? "the files of the earlier run have no name yet; the next start "
                              "gives them one"
                            : "the files of the replaced run could not be removed; the next start "
                              "removes them",
             {{"dir", AsideDir()}, {"error", status}});
}

absl::StatusOr<CheckpointStore*> RunDirectory::Checkpoints() {
  if (!store_) {
    TAOPD_ASSIGN_OR_RETURN(store_,
                           CheckpointStore::Open(path_ + "/checkpoints", checkpoint_options_));
  }
  return store_.get();
}

}  // namespace taopd
