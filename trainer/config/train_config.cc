#include "trainer/config/train_config.h"

#include "taopd/objective/check_objective.h"
#include "taopd/objective/objective_parameters.h"

namespace taopd {

namespace {

constexpr std::string_view kDefaultObjective = InfoOf(Objective()).name;

std::vector<std::string> ObjectiveNames() {
  std::vector<std::string> names;
  for (const ObjectiveInfo& row : AllObjectives()) names.emplace_back(row.name);
  return names;
}

absl::Status CheckObjective(ObjectiveConfig& config) {
  if (!config.terms.empty() && !config.name.empty()) {
    return InvalidArgument("objective.name = ", config.name,
                           " and objective.terms are both given: leave one of them empty");
  }
  if (config.terms.size() > static_cast<size_t>(kMaxObjectiveTerms)) {
    return InvalidArgument("objective.terms has ", config.terms.size(), " terms: the limit is ",
                           kMaxObjectiveTerms);
  }
  for (size_t i = 0; i < config.terms.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (config.terms[i].name == config.terms[j].name) {
        return InvalidArgument("objective.terms names ", config.terms[i].name, " twice");
      }
    }
  }
  if (config.name.empty() && config.terms.empty()) config.name = std::string(kDefaultObjective);
  const ObjectiveTerms terms = config.Terms();
  if (const std::string problem = ProblemOf(terms); !problem.empty())
    return InvalidArgument("objective: ", problem);
  if ((NeedsOf(terms) & kNeedsFullVocabulary) == 0) return absl::OkStatus();
  if (config.support != "teacher") {
    return InvalidArgument("objective.support = ", config.support, ": ", NameOf(terms),
                           " compares the whole vocabulary; leave it at teacher");
  }
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.needs & kNeedsSupport) != 0 && (info.needs & kNeedsFullVocabulary) == 0) {
      return InvalidArgument(
          "objective.terms: ", info.name,
          " compares the top-k, others the whole vocabulary; they cannot be combined");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void ObjectiveTermConfig::Visit(SettingVisitor& v) {
  v.Setting("name", &name, "An objective.", OneOf(ObjectiveNames()));
  v.Setting("weight", &weight, "Factor of its loss.");
}

void ObjectiveConfig::Visit(SettingVisitor& v) {
  std::vector<std::string> names = ObjectiveNames();
  names.emplace_back("");
  v.Setting("name", &name,
            "Loss of a position; `taopd-trainer objectives` lists them. Empty: ta_opd, or what "
            "terms says.",
            OneOf(std::move(names)));
  v.List("terms", &terms,
         "In place of name, a weighted sum: [{name: ta_opd, weight: 1}, {name: sampled_token, "
         "weight: 0.1}].");
  v.Setting("support", &support,
            "Whose top-k tokens are compared one by one: teacher, student (those of the policy "
            "that generated), or union.",
            OneOf({"teacher", "student", "union"}));
  v.Setting("student_top_k", &student_top_k,
            "Student tokens per position for support student and union; 0 = teacher.top_k.",
            AtLeast<int64_t>(0));
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    v.Setting(std::string(parameter.name), &(parameters.*parameter.value),
              std::string(parameter.summary),
              SettingCheck<double>([&parameter](const double& value) {
                return parameter.IsInRange(value) ? absl::OkStatus()
                                                  : InvalidArgument("must be ", parameter.range);
              }));
  }
  v.Setting("aggregation", &aggregation,
            "token-mean, seq-mean-token-mean or seq-mean-token-sum, as in verl.",
            OneOf({"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}));
  v.Setting("overlap", &overlap,
            "Measure how many of the teacher's top-k are among the student's (support teacher).");
  v.Setting("full_kl_rows", &full_kl_rows,
            "Positions per step on which the full-vocabulary KL and the truncation gap are "
            "measured, before the first update; needs a teacher that sends dense log-probs. 0 = "
            "none; with objective full it is every position.",
            AtLeast<int64_t>(0));
}

ObjectiveTerms ObjectiveConfig::Terms() const {
  std::vector<ObjectiveTermConfig> configs = terms;
  if (configs.empty())
    configs.push_back({name.empty() ? std::string(kDefaultObjective) : name, 1.0});
  ObjectiveTerms combination;
  combination.num_terms = static_cast<int32_t>(configs.size());
  for (size_t i = 0; i < configs.size(); ++i) {
    Objective objective = *FindObjective(configs[i].name);
    static_cast<ObjectiveParameters&>(objective) = parameters;
    combination.term[i] = {objective, configs[i].weight};
  }
  return combination;
}

absl::Status CheckTrainConfig(TrainConfig& config) {
  TAOPD_RETURN_IF_ERROR(CheckSettings(DescribeSettings(config)));
  TAOPD_RETURN_IF_ERROR(CheckTeachers(config.teacher, config.teachers));
  TAOPD_RETURN_IF_ERROR(CheckObjective(config.objective));
  if (config.data.train_batch_size % config.trainer.mini_batch_size != 0) {
    return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                           ": must divide data.train_batch_size = ", config.data.train_batch_size);
  }
  if (config.data.filter_overlong_prompts && config.data.truncation != "error") {
    return InvalidArgument(
        "data.truncation = ", config.data.truncation,
        " cuts over-long prompts and data.filter_overlong_prompts drops them: choose one");
  }
  return absl::OkStatus();
}

}  // namespace taopd
