#include "trainer/setup/ranks.h"

#include <absl/strings/str_split.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/base/log.h"
#include "common/model/decoder.h"
#include "trainer/dist/shares.h"
#include "trainer/run/resume/resume_check.h"

namespace taopd {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// Returns the settings as lines "path = value".
std::string SettingLines(TrainConfig& config) {
  std::string text;
  for (const RunFact& fact : FactsOf(DescribeSettings(config))) {
    text += Concat(fact.name, " = ", fact.value, "\n");
  }
  return text;
}

absl::Status CompareWithRoot(const std::string& mine, const std::string& root) {
  if (mine == root) return absl::OkStatus();
  const std::vector<std::string> here = Lines(mine), there = Lines(root);
  for (size_t i = 0; i < here.size() && i < there.size(); ++i) {
    if (here[i] != there[i]) {
      return InvalidArgument("the configuration differs from that of rank 0: ", here[i], " here, ",
                             there[i], " there; all ranks need the same");
    }
  }
  return InvalidArgument("the configuration has ", here.size(), " settings, that of rank 0 ",
                         there.size(), ": another version of the program runs there");
}

absl::Status CheckSameConfig(TrainConfig& config, ProcessGroup* group) {
  const std::string mine = SettingLines(config);
  TAOPD_ASSIGN_OR_RETURN(const std::string root, group->BroadcastText(mine, 0));
  return group->AgreeOnStatus(CompareWithRoot(mine, root));
}

ProcessGroupOptions GroupOptionsOf(const DistConfig& config, at::Device device) {
  return {.interface = config.interface,
          .collective_timeout = absl::Seconds(config.collective_timeout_s),
          .silence = absl::Seconds(config.heartbeat_timeout_s),
          .device = device};
}

}  // namespace

absl::Status JoinRanks(TrainConfig* config, std::unique_ptr<ProcessGroup>* group) {
  TAOPD_ASSIGN_OR_RETURN(const Rendezvous where, BadUsage(ReadRendezvous(ProcessEnvironment())));
  TAOPD_RETURN_IF_ERROR(BadUsage(Shares::Make(config->dist.deterministic ? config->dist.shares : 0,
                                              where.rank, where.world_size)
                                     .status()));
  const int64_t sequences = config->trainer.mini_batch_size * config->rollout.n;
  if (sequences < where.world_size) {
    return BadUsage(InvalidArgument("trainer.mini_batch_size * rollout.n = ", sequences,
                                    ": a mini-batch has fewer sequences than there are ranks, ",
                                    where.world_size));
  }
  if (where.world_size == 1) {
    *group = ProcessGroup::Alone();
    return absl::OkStatus();
  }
  TAOPD_ASSIGN_OR_RETURN(at::Device device,
                         BadUsage(Annotate(ParseDevice(config->trainer.device), "trainer.device")));
  if (device.is_cuda() && config->trainer.device == "auto")
    device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(where.local_rank));
  TAOPD_ASSIGN_OR_RETURN(
      *group, WithExitCode(kExitUnavailable,
                           ProcessGroup::Connect(where, GroupOptionsOf(config->dist, device))));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckSameConfig(*config, group->get())));
  config->trainer.device = device.str();
  LogInfo("rank", {{"rank", where.rank}, {"world_size", where.world_size}, {"from", where.source}});
  return absl::OkStatus();
}

absl::Status AgreeOnFailure(ProcessGroup* group, const absl::Status& mine) {
  if (group->world_size() == 1) return mine;
  const absl::Status agreed = group->AgreeOnStatus(mine);
  if (agreed.ok()) return absl::OkStatus();
  const auto code = group->AgreeOnLargest(ExitCodeOf(mine));
  return WithExitCode(code.ok() ? static_cast<ExitCode>(*code) : kExitUnavailable, agreed);
}

absl::StatusOr<Metrics> MetricsOfRoot(ProcessGroup* group, const Metrics& metrics) {
  if (group->world_size() == 1) return metrics;
  std::string text;
  for (const auto& [name, value] : metrics) {
    char exact[64];
    std::snprintf(exact, sizeof(exact), "%a", value);
    text += Concat(name, " ", exact, "\n");
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string root, group->BroadcastText(text, 0));
  Metrics result;
  for (const std::string& line : Lines(root)) {
    const size_t space = line.rfind(' ');
    result.emplace_back(line.substr(0, space), std::strtod(line.c_str() + space + 1, nullptr));
  }
  return result;
}

absl::Status LeaveRanks(ProcessGroup* group, absl::Status failure) {
  if (group == nullptr) return failure;
  if (!failure.ok() && !IsStop(ExitCodeOf(failure))) {
    group->Fail(failure);
    return failure;
  }
  // Rank 0 may still be writing.
  const absl::Status agreed = group->AgreeOnStatus(absl::OkStatus());
  if (!agreed.ok()) return WithExitCode(kExitUnavailable, agreed);
  group->Leave();
  return failure;
}

}  // namespace taopd
