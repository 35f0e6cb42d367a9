// The subcommand export: writes the model of a checkpoint to a directory.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

namespace fs = std::filesystem;

struct ExportRequest {
  std::string run_dir, output_dir;
  int64_t step = -1;           // the newest complete checkpoint if negative
  std::string dtype = "auto";  // of a model that is merged from an adapter and its base
};

// Returns the newest checkpoint whose files are complete or, if `wanted_step` is not negative, the
// one of that step.
absl::StatusOr<std::string> FindCheckpoint(const std::string& run_dir, int64_t wanted_step) {
  const std::string dir = run_dir + "/checkpoints";
  TAOPD_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(dir));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (it->mini_batch > 0 || (wanted_step >= 0 && it->step != wanted_step)) continue;
    const absl::Status whole = VerifyCheckpoint(it->path, it->step, /*hashes=*/true);
    if (whole.ok()) return it->path;
    if (wanted_step >= 0) return whole;
    LogError("damaged checkpoint", {{"path", it->path}, {"error", whole}});
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

// Writes the model of a checkpoint, whose files are verified first.
absl::Status Export(const ExportRequest& request) {
  TAOPD_ASSIGN_OR_RETURN(const std::string checkpoint,
                         BadData(FindCheckpoint(request.run_dir, request.step)));
  const std::string model_dir = checkpoint + "/model";
  const bool is_adapter = IsAdapterDir(model_dir);
  if (!is_adapter && request.dtype != "auto") {
    return BadUsage(InvalidArgument("--dtype ", request.dtype, ": ", model_dir,
                                    " is a model, which is copied as it is"));
  }
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckOutput(request.output_dir)));
  TAOPD_RETURN_IF_ERROR(is_adapter
                            ? BadModel(MergeModel(model_dir, request.output_dir, request.dtype))
                            : BadUsage(CopyModel(model_dir, request.output_dir)));
  LogInfo("exported", {{"checkpoint", checkpoint}, {"model", request.output_dir}});
  return absl::OkStatus();
}

}  // namespace

Subcommand AddExport(CLI::App& app) {
  auto request = std::make_shared<ExportRequest>();
  CLI::App* command = app.add_subcommand("export",
                                         "Write the model of a checkpoint as a Hugging Face "
                                         "directory; an adapter is merged into its base");
  command->add_option("--run", request->run_dir, "Directory of the run")->required();
  command
      ->add_option("--output", request->output_dir,
                   "Directory to write the model to; must be empty or not exist")
      ->required();
  command
      ->add_option("--step", request->step,
                   "Step of the checkpoint. Default: the newest complete checkpoint")
      ->check(NonNegativeNumber());
  command
      ->add_option("--dtype", request->dtype,
                   "Data type of the weights that an adapter is merged into: float32, bfloat16, or "
                   "auto, which keeps the base's type")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  return {command, [request] { return Export(*request); }};
}

}  // namespace taopd
