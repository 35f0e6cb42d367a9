#include "trainer/step/kl_probe.h"

#include <nlohmann/json.hpp>

#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/support.h"

namespace taopd {

double MeasureKlToStart(Decoder* student, const HeadOptions& head,
                        const std::vector<Rollout>& probe, int64_t micro_batch_tokens) {
  const at::NoGradGuard no_grad;
  HeadOptions options = head;
  options.objective = *FindObjective("cross_entropy");  // its loss is -log p(y)
  options.top_k_metrics = false;
  std::vector<ScoredRollout> items;
  std::vector<int64_t> num_tokens;
  double sum = 0;
  int64_t num_rows = 0, begin = 0;
  for (const Rollout& rollout : probe) {
    items.push_back(WithoutTeacher(rollout));
    num_tokens.push_back(NumInputTokens(rollout));
    for (const float log_prob : rollout.behavior_log_probs) sum += log_prob;
    num_rows += static_cast<int64_t>(rollout.response_ids.size());
  }
  for (const int64_t end : MicroBatchEnds(num_tokens, micro_batch_tokens)) {
    std::vector<const ScoredRollout*> sequences;
    for (int64_t i = begin; i < end; ++i) sequences.push_back(&items[i]);
    const HeadTargets targets =
        MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
    sum += SumRowLosses(*student, ForwardResponses(student, sequences), targets, options);
    begin = end;
  }
  return sum / static_cast<double>(num_rows);
}

std::string WriteProbe(const std::vector<Rollout>& probe) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Rollout& rollout : probe) {
    rows.push_back({{"prompt_ids", rollout.prompt_ids},
                    {"response_ids", rollout.response_ids},
                    {"log_probs", rollout.behavior_log_probs}});
  }
  return rows.dump() + "\n";
}

absl::StatusOr<std::vector<Rollout>> ReadProbe(const std::string& text) {
  const absl::Status malformed = DataLoss("the probe of policy/kl_to_start is malformed");
  const nlohmann::json rows = nlohmann::json::parse(text, nullptr, false);
  if (!rows.is_array()) return malformed;
  std::vector<Rollout> probe;
  try {
    for (const nlohmann::json& row : rows) {
      Rollout rollout;
      rollout.prompt_ids = row.at("prompt_ids").get<std::vector<int32_t>>();
      rollout.response_ids = row.at("response_ids").get<std::vector<int32_t>>();
      rollout.behavior_log_probs = row.at("log_probs").get<std::vector<float>>();
      if (rollout.prompt_ids.empty() || rollout.response_ids.empty() ||
          rollout.behavior_log_probs.size() != rollout.response_ids.size()) {
        return malformed;
      }
      probe.push_back(std::move(rollout));
    }
  } catch (const nlohmann::json::exception&) {
    return malformed;
  }
  return probe;
}

}  // namespace taopd
