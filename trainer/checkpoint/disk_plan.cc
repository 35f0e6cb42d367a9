#include "trainer/checkpoint/disk_plan.h"

#include <algorithm>
#include <filesystem>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/io/disk_space.h"

namespace taopd {

int64_t PublishedBytesIn(const std::string& run_dir) {
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(run_dir, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(kPublishedPrefix))
      bytes += BytesOnDisk(it->path().string());
  }
  return bytes;
}

DiskPlan PlanDisk(const DiskUse& use) {
  DiskPlan plan;
  plan.model_bytes = use.weight_bytes;
  plan.checkpoint_bytes = use.weight_bytes + use.state_bytes;
  const int64_t every = use.checkpoints.keep_every;
  const int64_t num_checkpoints =
      1 + use.checkpoints.keep_last + use.max_pinned + (every > 0 ? use.total_steps / every : 0);
  plan.num_checkpoints = std::min(num_checkpoints, use.total_steps + 1);
  plan.num_published = use.num_published;
  if (!use.weights_dir.empty() && !AreOnOneDisk(use.run_dir, use.weights_dir))
    plan.weights_dir = use.weights_dir;
  return plan;
}

namespace {

std::string BytesText(std::optional<int64_t> bytes) {
  return bytes ? Concat(*bytes, " bytes (", MemoryText(*bytes), ")") : "an unknown number";
}

// Returns the parts of the plan, as the subject of a sentence.
std::string PartsText(const DiskPlan& plan) {
  return Concat(plan.num_checkpoints, " checkpoints of ", plan.checkpoint_bytes,
                " bytes (kept, pinned and being written)",
                plan.publishes_in_run_dir()
                    ? Concat(", ", plan.num_published, " versions of the weights of ",
                             plan.model_bytes, " bytes for rollout.endpoints")
                    : std::string(),
                " and the model take ", plan.total_bytes(), " bytes");
}

std::string PublishedText(const DiskPlan& plan) {
  return Concat("rollout.weights_dir ", plan.weights_dir, ": ", plan.num_published,
                " versions of the weights of ", plan.model_bytes,
                " bytes for rollout.endpoints take ", plan.published_bytes(), " bytes");
}

// Returns the shortage if it `refuses` the run, and otherwise logs it.
absl::Status ReportShortage(const absl::Status& shortage, bool refuses) {
  if (refuses) return shortage;
  LogWarning("disk plan", {{"warning", std::string(shortage.message())}});
  return absl::OkStatus();
}

}  // namespace

std::string DiskPlanText(const DiskPlan& plan, const std::string& run_dir,
                         std::optional<int64_t> free_bytes) {
  std::string text =
      Concat("disk of run.dir ", run_dir, ": ", PartsText(plan), " (",
             MemoryText(plan.total_bytes()), "),\n  ", BytesText(free_bytes), " are free\n");
  if (!plan.weights_dir.empty()) {
    text += Concat("disk of ", PublishedText(plan), ", ",
                   BytesText(FreeDiskBytes(plan.weights_dir)), " are free\n");
  }
  return text;
}

absl::Status CheckDiskPlan(const DiskPlan& plan, const std::string& run_dir, int64_t free_bytes,
                           bool refuses) {
  const int64_t for_one = free_bytes + plan.freed_bytes;
  const bool publishes_here = plan.publishes_in_run_dir();
  const int64_t needed = plan.checkpoint_bytes + (publishes_here ? plan.model_bytes : 0);
  if (for_one < needed) {
    return ResourceExhausted("run.dir ", run_dir, ": ",
                             publishes_here
                                 ? "a checkpoint and the weights for rollout.endpoints take "
                                 : "a checkpoint takes ",
                             needed, " bytes, and the disk has ", for_one,
                             " free: make room, choose another run.dir, or set trainer.disk_plan "
                             "to off");
  }
  const int64_t for_all = for_one + plan.held_bytes;
  if (for_all >= plan.total_bytes()) return absl::OkStatus();
  return ReportShortage(
      ResourceExhausted("run.dir ", run_dir, ": ", PartsText(plan), ", and the disk has ", for_all,
                        " for them: make room, or lower trainer.keep_checkpoints"),
      refuses);
}

absl::Status CheckWeightsDisk(const DiskPlan& plan, int64_t free_bytes, bool refuses) {
  if (free_bytes >= plan.published_bytes()) return absl::OkStatus();
  const absl::Status shortage =
      ResourceExhausted(PublishedText(plan), ", and the disk has ", free_bytes,
                        " free: make room, or choose another rollout.weights_dir");
  return ReportShortage(shortage, refuses || free_bytes < plan.model_bytes);
}

bool DiskAttempts::MayFit(int64_t bytes) const {
  if (!free_after_failure_) return true;
  const std::optional<int64_t> free_bytes = FreeDiskBytes(dir_);
  return !free_bytes || *free_bytes >= bytes || *free_bytes > *free_after_failure_;
}

absl::Status DiskAttempts::Failed(int64_t bytes, const absl::Status& error) {
  ++num_failures_;
  free_after_failure_ = FreeDiskBytes(dir_);
  return Annotate(error, Concat(dir_, " needs ", bytes, " bytes and has ",
                                BytesText(free_after_failure_), " free"));
}

}  // namespace taopd
