#include "trainer/step/loss/bad_batch.h"

#include <absl/strings/str_format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/io/file.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// JSON has neither NaN nor infinities, and the reader needs to tell them apart.
Json NumberOrText(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Json NumbersOrTexts(const std::vector<float>& values) {
  Json json = Json::array();
  for (const float value : values) json.push_back(NumberOrText(value));
  return json;
}

}  // namespace

absl::Status WriteBadBatch(const BadBatch& batch, const std::string& dir, int64_t max_batches) {
  if (max_batches == 0) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir));
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
  if (static_cast<int64_t>(names.size()) >= max_batches) return absl::OkStatus();
  Json sequences = Json::array();
  for (const ScoredRollout* sequence : batch.sequences) {
    const SupportScores& scores = sequence->scores;
    sequences.push_back(
        {{"prompt_ids", sequence->rollout.prompt_ids},
         {"response_ids", sequence->rollout.response_ids},
         {"behavior_log_probs", NumbersOrTexts(sequence->rollout.behavior_log_probs)},
         {"support_size", scores.support_size},
         {"support_ids", scores.ids},
         {"teacher_log_probs", NumbersOrTexts(scores.log_probs)},
         {"teacher_log_tail", NumbersOrTexts(scores.log_tail)},
         {"teacher_sampled_log_probs", NumbersOrTexts(scores.sampled_log_probs)}});
  }
  const Json json = {{"step", batch.step},
                     {"mini_batch", batch.mini_batch},
                     {"loss", NumberOrText(batch.loss)},
                     {"grad_norm", NumberOrText(batch.grad_norm)},
                     {"bad_sequence", batch.bad_sequence},
                     {"bad_row", batch.bad_row},
                     {"prompt_id", batch.prompt_id},
                     {"sequences", std::move(sequences)}};
  const std::string name = absl::StrFormat("/step-%06d-mini-%d.json", batch.step, batch.mini_batch);
  return WriteFileAtomically(dir + name, json.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace taopd
