#include "trainer/commands/train/rollout_log.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/log.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

constexpr int64_t kMaxLogBytes = int64_t{64} << 20;

nlohmann::ordered_json TextOrIds(const Tokenizer* tokenizer, const std::vector<int32_t>& ids) {
  if (tokenizer == nullptr) return ids;
  return tokenizer->Decode(ids);
}

}  // namespace

void RolloutLog::Write(int64_t step, const std::vector<const PromptRecord*>& prompts,
                       const std::vector<Rollout>& rollouts, const Tokenizer* tokenizer) {
  const auto size = static_cast<int64_t>(rollouts.size());
  const int64_t count = std::min(per_step_, size);
  if (count == 0) return;
  const std::string path = run_dir_ + "/rollouts.jsonl";
  std::error_code error;
  if (std::filesystem::exists(path, error) &&
      static_cast<int64_t>(std::filesystem::file_size(path, error)) > kMaxLogBytes) {
    std::filesystem::rename(path, run_dir_ + "/rollouts.1.jsonl", error);
  }
  absl::StatusOr<JsonlWriter> writer = JsonlWriter::Open(path);
  absl::Status status = writer.status();
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    const int64_t index = i * size / count;
    const Rollout& rollout = rollouts[index];
    const double sum =
        std::accumulate(rollout.behavior_log_probs.begin(), rollout.behavior_log_probs.end(), 0.0);
    const auto num_tokens = static_cast<int64_t>(rollout.response_ids.size());
    status = writer->Write(
        {{"step", step},
         {"prompt_id", prompts[index * static_cast<int64_t>(prompts.size()) / size]->id},
         {"prompt", TextOrIds(tokenizer, rollout.prompt_ids)},
         {"response", TextOrIds(tokenizer, rollout.response_ids)},
         {"num_tokens", num_tokens},
         {"truncated", rollout.finish == FinishReason::kLength},
         {"mean_log_prob", sum / static_cast<double>(num_tokens)}});
  }
  if (!status.ok()) LogWarning("rollouts are not written", {{"error", status}});
}

}  // namespace taopd
