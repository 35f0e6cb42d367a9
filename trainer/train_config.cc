#include "trainer/train_config.h"

#include "taopd/objective.h"

namespace taopd {

void ObjectiveConfig::Visit(SettingVisitor& v) {
  std::vector<std::string> names;
  for (const ObjectiveInfo& row : AllObjectives()) names.emplace_back(row.name);
  v.Setting("name", &name, "Loss of a position; `taopd-trainer objectives` lists them.", OneOf(std::move(names)));
  v.Setting("support", &support, "Whose top-k tokens are compared one by one: the teacher's.", OneOf({"teacher"}));
  v.Setting("beta", &beta, "Weight of the teacher in jsd's mixture.", SettingCheck<double>([](const double& value) {
              return value > 0 && value < 1 ? absl::OkStatus() : InvalidArgument("must be in (0, 1)");
            }));
  v.Setting("aggregation", &aggregation, "token-mean, seq-mean-token-mean or seq-mean-token-sum, as in verl.",
            OneOf({"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}));
}

absl::Status CheckTrainConfig(TrainConfig& config) {
  TAOPD_RETURN_IF_ERROR(CheckSettings(DescribeSettings(config)));
  if (config.data.train_batch_size % config.trainer.mini_batch_size != 0) {
    return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                           ": must divide data.train_batch_size = ", config.data.train_batch_size);
  }
  return absl::OkStatus();
}

}  // namespace taopd
