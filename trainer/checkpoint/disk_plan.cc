#include "trainer/checkpoint/disk_plan.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/io/disk_space.h"

namespace taopd {

DiskPlan PlanDisk(const DiskUse& use) {
  DiskPlan plan;
  plan.model_bytes = use.weight_bytes;
  plan.checkpoint_bytes = use.weight_bytes + use.state_bytes;
  const int64_t every = use.checkpoints.keep_every;
  const int64_t num_checkpoints =
      1 + use.checkpoints.keep_last + use.max_pinned + (every > 0 ? use.total_steps / every : 0);
  plan.num_checkpoints = std::min(num_checkpoints, use.total_steps + 1);
  return plan;
}

std::string DiskPlanText(const DiskPlan& plan, const std::string& run_dir,
                         std::optional<int64_t> free_bytes) {
  return Concat("disk of run.dir ", run_dir, ": ", plan.num_checkpoints, " checkpoints of ",
                plan.checkpoint_bytes,
                " bytes (kept, pinned and being written) and the model take ", plan.total_bytes(),
                " bytes (", MemoryText(plan.total_bytes()), "),\n  ",
                free_bytes ? Concat(*free_bytes, " bytes (", MemoryText(*free_bytes), ")")
                           : std::string("an unknown number"),
                " are free\n");
}

absl::Status CheckDiskPlan(const DiskPlan& plan, const std::string& run_dir, int64_t free_bytes,
                           bool refuses) {
  const int64_t for_one = free_bytes + plan.freed_bytes;
  if (for_one < plan.checkpoint_bytes) {
    return ResourceExhausted("run.dir ", run_dir, ": a checkpoint takes ", plan.checkpoint_bytes,
                             " bytes, and the disk has ", for_one,
                             " free: make room, choose another run.dir, or set trainer.disk_plan "
                             "to off");
  }
  const int64_t for_all = for_one + plan.held_bytes;
  if (for_all >= plan.total_bytes()) return absl::OkStatus();
  const absl::Status shortage = ResourceExhausted(
      "run.dir ", run_dir, ": ", plan.num_checkpoints, " checkpoints of ", plan.checkpoint_bytes,
      " bytes (kept, pinned and being written) and the model take ", plan.total_bytes(),
      " bytes, and the disk has ", for_all,
      " for them: make room, or lower trainer.keep_checkpoints");
  if (refuses) return shortage;
  LogWarning("disk plan", {{"warning", std::string(shortage.message())}});
  return absl::OkStatus();
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
                                free_after_failure_.value_or(-1), " free"));
}

}  // namespace taopd
