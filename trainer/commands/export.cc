// The subcommand export: writes the model of a checkpoint to a directory.
#include <charconv>
#include <filesystem>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/commands/commands.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

namespace fs = std::filesystem;

// Returns the steps of the checkpoints in `dir`, the newest first.
absl::StatusOr<std::vector<std::pair<int64_t, std::string>>> ListCheckpoints(
    const std::string& dir) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : names) {
    int64_t step = -1;
    if (!name.starts_with("step-")) continue;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + 5, end, step).ptr != end || step < 0) continue;
    found.emplace_back(step, dir + "/" + name);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

// Returns the newest checkpoint whose files are complete or, if `wanted_step` is not negative, the
// one of that step.
absl::StatusOr<std::string> FindCheckpoint(const std::string& run_dir, int64_t wanted_step) {
  const std::string dir = run_dir + "/checkpoints";
  TAOPD_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(dir));
  for (const auto& [step, path] : all) {
    if (wanted_step >= 0 && step != wanted_step) continue;
    const absl::Status whole = VerifyCheckpoint(path, step, /*hashes=*/true);
    if (whole.ok()) return path;
    if (wanted_step >= 0) return whole;
    LogError("damaged checkpoint", {{"path", path}, {"error", whole}});
  }
  if (wanted_step >= 0) return NotFound(dir, " has no checkpoint of step ", wanted_step);
  return NotFound(dir, " has no complete checkpoint");
}

absl::Status CheckOutput(const std::string& to) {
  std::error_code error;
  if (fs::exists(to, error) && !fs::is_empty(to, error)) {
    return FailedPrecondition("--output ", to, " exists and is not empty");
  }
  return absl::OkStatus();
}

// Merges the adapter in `from` into its base.
absl::Status MergeModel(const std::string& from, const std::string& to, const std::string& dtype) {
  TAOPD_ASSIGN_OR_RETURN(const Student merged, LoadStudent(from, dtype, "cpu", nullptr));
  return SaveStudentModel(merged, to);
}

absl::Status CopyModel(const std::string& from, const std::string& to) {
  std::error_code error;
  TAOPD_RETURN_IF_ERROR(MakeDirectories(to));
  fs::copy(from, to, fs::copy_options::recursive, error);
  if (error) return Internal("cannot copy ", from, " to ", to, ": ", error.message());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunExport(const ExportRequest& request) {
  const auto checkpoint = FindCheckpoint(request.run_dir, request.step);
  if (!checkpoint.ok()) return BadData(checkpoint.status());
  const std::string model_dir = *checkpoint + "/model";
  const bool is_adapter = IsAdapterDir(model_dir);
  if (!is_adapter && request.dtype != "auto") {
    return BadUsage(InvalidArgument("--dtype ", request.dtype, ": ", model_dir,
                                    " is a model, which is copied as it is"));
  }
  if (absl::Status fresh = CheckOutput(request.output_dir); !fresh.ok()) return BadUsage(fresh);
  if (is_adapter) {
    const absl::Status merged = MergeModel(model_dir, request.output_dir, request.dtype);
    if (!merged.ok()) return BadModel(merged);
  } else if (absl::Status copied = CopyModel(model_dir, request.output_dir); !copied.ok()) {
    return BadUsage(copied);
  }
  LogInfo("exported", {{"checkpoint", *checkpoint}, {"model", request.output_dir}});
  return absl::OkStatus();
}

}  // namespace taopd
