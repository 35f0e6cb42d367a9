// The subcommand score: fills the score cache with a teacher's scores of given sequences.
#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/jsonl.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/process.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_array() || found->empty()) {
    return InvalidArgument(key, " must be a list of token ids that is not empty");
  }
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : *found) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return InvalidArgument(key, " has an entry that is no token id: ", id.dump().substr(0, 40));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::StatusOr<std::vector<Rollout>> ReadRollouts(const TrainConfig& config,
                                                  const std::string& path) {
  std::vector<Rollout> rollouts;
  TAOPD_RETURN_IF_ERROR(ReadJsonl(path, [&](const nlohmann::json& row, int64_t) -> absl::Status {
    if (!row.is_object()) return InvalidArgument("a row must be a JSON object");
    Rollout rollout;
    TAOPD_ASSIGN_OR_RETURN(rollout.prompt_ids, ReadTokenIds(row, "prompt_ids"));
    TAOPD_ASSIGN_OR_RETURN(rollout.response_ids, ReadTokenIds(row, "response_ids"));
    const auto source = row.find(config.data.source_key);
    if (source != row.end() && source->is_string()) rollout.source = source->get<std::string>();
    rollouts.push_back(std::move(rollout));
    return absl::OkStatus();
  }));
  if (rollouts.empty()) return InvalidArgument(path, " has no rows");
  return rollouts;
}

// The progress over the answers so far.
struct ScoreProgress {
  absl::Mutex mutex;
  int64_t num_open ABSL_GUARDED_BY(mutex) = 0;
  int64_t num_tokens ABSL_GUARDED_BY(mutex) = 0;
  absl::Status error ABSL_GUARDED_BY(mutex);
};

// Scores all rollouts with a bounded number of concurrent requests. Returns the number of scored
// tokens.
absl::StatusOr<int64_t> ScoreRollouts(const SupportOptions& support,
                                      const std::vector<Rollout>& rollouts, int64_t concurrency,
                                      TeacherClient* client) {
  ScoreProgress progress;
  const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mutex) {
    return progress.num_open < concurrency;
  };
  const auto is_idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mutex) {
    return progress.num_open == 0;
  };
  for (size_t i = 0; i < rollouts.size(); ++i) {
    {
      absl::MutexLock lock(&progress.mutex);
      progress.mutex.Await(absl::Condition(&has_room));
      if (!progress.error.ok()) break;
      ++progress.num_open;
    }
    client->Score(MakeTeacherRequest(support, rollouts[i], Concat("row-", i + 1)),
                  [&progress](absl::StatusOr<TeacherScores> scores) {
                    absl::MutexLock lock(&progress.mutex);
                    --progress.num_open;
                    progress.error.Update(scores.status());
                    if (scores.ok()) {
                      progress.num_tokens += static_cast<int64_t>(scores->sampled_log_probs.size());
                    }
                  });
  }
  absl::MutexLock lock(&progress.mutex);
  progress.mutex.Await(absl::Condition(&is_idle));
  if (!progress.error.ok()) return progress.error;
  return progress.num_tokens;
}

}  // namespace

absl::Status RunScore(const TrainConfig& config, const ScoreRequest& request) {
  return CatchExceptions([&]() -> absl::Status {
    const SupportOptions support = MakeSupportOptions(config, /*vocab_size=*/0);
    if (support.student_top_k > 0) {
      return BadUsage(InvalidArgument("objective.support = ", WordOf(config.objective.support),
                                      ": needs the student's tokens, which a file does not hold"));
    }
    auto rollouts = ReadRollouts(config, request.input_path);
    if (!rollouts.ok()) return BadData(Annotate(rollouts.status(), "--input"));
    auto client = MakeTeacherClient(config);
    if (!client.ok()) return BadUsage(client.status());
    auto info = (*client)->Connect(absl::Seconds(config.teacher.connect_timeout_s));
    if (!info.ok()) return WithExitCode(kExitUnavailable, Annotate(info.status(), "teacher"));
    const auto num_tokens = ScoreRollouts(support, *rollouts, request.concurrency, client->get());
    if (!num_tokens.ok()) {
      return WithExitCode(absl::IsUnavailable(num_tokens.status()) ? kExitUnavailable : kExitData,
                          num_tokens.status());
    }
    TeacherClientStats stats = (*client)->stats();
    std::cout << "sequences\t" << rollouts->size() << "\nscored_tokens\t" << *num_tokens
              << "\nfrom_cache\t" << stats.cache_hits << "\nfrom_teacher\t" << stats.cache_misses
              << "\n";
    return absl::OkStatus();
  });
}

}  // namespace taopd
