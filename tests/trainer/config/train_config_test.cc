// Tests of settings that depend on each other. bad_settings_test.cc has what a single value may be.
#include "trainer/config/train_config.h"

#include "common/config/yaml.h"
#include "taopd/objective/check_objective.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

absl::Status Check(const std::string& objective, TrainConfig* config) {
  config->student.model = "m";
  TAOPD_RETURN_IF_ERROR(
      ReadYamlSettings("objective: " + objective, "c.yaml", DescribeSettings(*config)));
  return CheckTrainConfig(*config);
}

TEST(TrainConfig, ObjectiveIsANameOrTerms) {
  TrainConfig config;
  ASSERT_OK(Check("{}", &config));
  EXPECT_EQ(config.objective.name, "ta_opd");
  TrainConfig terms;
  ASSERT_OK(Check(
      "{terms: [{name: jsd, weight: 2}, {name: sampled_token}], beta: 0.25, max_rho: 3}", &terms));
  EXPECT_EQ(terms.objective.name, "");
  const ObjectiveTerms combination = terms.objective.Terms();
  ASSERT_EQ(combination.num_terms, 2);
  EXPECT_EQ(InfoOf(combination.term[0].objective).name, "jsd");
  EXPECT_EQ(combination.term[0].weight, 2);
  EXPECT_EQ(combination.term[1].objective.beta, 0.25);
  EXPECT_EQ(combination.term[1].objective.max_rho, 3);
  // The written settings can be read again.
  TrainConfig again;
  ASSERT_OK(ReadYamlSettings(WriteYamlSettings(DescribeSettings(terms)), "c.yaml",
                             DescribeSettings(again)));
  ASSERT_OK(CheckTrainConfig(again));
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(again)), WriteYamlSettings(DescribeSettings(terms)));
}

TEST(TrainConfig, ImpossibleObjectivesAreRefused) {
  const auto refused = [](const std::string& objective, const std::string& says) {
    TrainConfig config;
    EXPECT_ERROR(Check(objective, &config), absl::StatusCode::kInvalidArgument, says);
  };
  refused("{name: ta_op}", "did you mean \"ta_opd\"?");
  refused("{name: full, terms: [{name: ta_opd}]}", "are both given");
  refused("{terms: [{name: ta_opd}, {name: ta_opd}]}", "names ta_opd twice");
  refused("{terms: [{name: ta_op}]}", "objective.terms[0]: name");
  refused("{terms: [{weight: 1}]}", "objective.terms[0]: name");
  refused("{terms: [{name: ta_opd, weight: 0}]}", "weight is 0");
  refused("{terms: [{name: ta_opd, weight: .inf}]}", "weight is inf");
  refused("{terms: [{name: ta_opd}, {name: jsd}, {name: mopd}, {name: vopd}, {name: ema_pg}]}",
          "the limit is 4");
  refused("{terms: [{name: ta_opd}, {name: full}]}", "cannot be combined");
  refused("{name: full, support: union}", "objective.support = union");
  refused("{name: full, support: student}", "objective.support = student");
  refused("{support: both}", "must be one of teacher, student, union");
  refused("{student_top_k: -1}", "objective.student_top_k = -1");
  refused("{full_kl_rows: -1}", "objective.full_kl_rows = -1");
  TrainConfig config;
  EXPECT_OK(Check("{terms: [{name: full}, {name: sampled_token, weight: 0.1}]}", &config));
}

TEST(TrainConfig, ARewardAddsATerm) {
  TrainConfig config;
  ASSERT_OK(Check(
      "{name: ta_opd, max_rho: 3}\nreward: {grader: math, weight: 0.5, clip_high: 0.28}", &config));
  const ObjectiveTerms both = config.LossTerms();
  ASSERT_EQ(both.num_terms, 2);
  EXPECT_EQ(NameOf(both), "ta_opd + 0.5 policy_gradient");
  EXPECT_EQ(both.term[1].objective.max_rho, 3);
  EXPECT_EQ(both.term[1].objective.clip_high, 0.28);
  TrainConfig alone;
  ASSERT_OK(Check(
      "{name: policy_gradient}\nreward: {grader: math, weight: 2}\nteacher: {kind: none}", &alone));
  EXPECT_EQ(NameOf(alone.LossTerms()), "2 policy_gradient");
}

TEST(TrainConfig, ImpossibleRewardsAreRefused) {
  const auto refused = [](const std::string& text, const std::string& says) {
    TrainConfig config;
    EXPECT_ERROR(Check(text, &config), absl::StatusCode::kInvalidArgument, says);
  };
  refused("{name: policy_gradient}", "needs a reward; set reward.grader or reward.url");
  refused("{terms: [{name: ta_opd}, {name: policy_gradient}]}\nreward: {grader: math}",
          "the section reward adds it");
  refused(
      "{terms: [{name: ta_opd}, {name: jsd}, {name: mopd}, {name: vopd}]}\n"
      "reward: {grader: math}",
      "the reward adds one");
  refused("{}\nteacher: {kind: none}", "teacher.kind = none: the objective needs a teacher");
  refused("{}\nteachers: [{name: a, kind: none}]", "kind none teaches nothing");
  const auto reward = [&](const std::string& section, const std::string& says,
                          const std::string& more = "") {
    refused(Concat("{}\nreward: {", section, "}\n", more), says);
  };
  reward("url: 'http://a:0'", "has no port in [1, 65535]");
  reward("grader: math, url: 'http://a'", "give one of them");
  reward("weight: 2", "reward.weight: needs reward.grader or reward.url");
  reward("scale: none", "reward.scale: needs reward.grader or reward.url");
  reward("grader: math, baseline: none", "reward.scale = std: reward.baseline is none");
  reward("grader: math", "rollout.n = 1 must be at least 2", "rollout: {n: 1}");
  for (const char* setting : {"timeout_s: 5", "outage_budget_s: 5", "connect_timeout_s: 5",
                              "max_in_flight: 5", "api_key_env: K"}) {
    const std::string name = std::string(setting).substr(0, std::string(setting).find(':'));
    reward(setting, "reward." + name + " is for reward.url");
    reward(Concat("grader: math, ", setting), "reward." + name + " is for reward.url");
  }
  reward("url: 'http://a', answer_pattern: x", "reward.answer_pattern is for reward.grader");
  reward("grader: math", "truncated, and policy_gradient", "rollout: {top_p: 0.9}");
  refused("{clip_low: 0.2}", "clip_low");
}

TEST(TrainConfig, GivenResponsesAreRefusedWhereTheSampledTokenIsAnEstimate) {
  const auto check = [](const std::string& objective, const std::string& data) {
    TrainConfig config;
    return Check(Concat(objective, "\ndata: {", data, "}"), &config);
  };
  const std::string given = "response_key: r, offpolicy_fraction: 0.25";
  int num_refused = 0;
  for (const ObjectiveInfo& info : AllObjectives()) {
    if (info.needs & kNeedsAdvantage) continue;
    SCOPED_TRACE(std::string(info.name));
    const absl::Status checked = check(Concat("{name: ", info.name, "}"), given);
    if ((info.needs & kReadsBehavior) == 0 || info.name == "sc_ta_opd") {
      EXPECT_OK(checked);
      continue;
    }
    ++num_refused;
    EXPECT_ERROR(checked, absl::StatusCode::kInvalidArgument,
                 Concat("data.offpolicy_fraction = 0.25: ", info.name, " estimates"));
  }
  EXPECT_EQ(num_refused, 6);
  const auto refused = [&](const std::string& objective, const std::string& data,
                           const std::string& says) {
    EXPECT_ERROR(check(objective, data), absl::StatusCode::kInvalidArgument, says);
  };
  refused("{}", "response_key: r", "one needs the other");
  refused("{}", "offpolicy_fraction: 0.5", "one needs the other");
  refused("{}", "response_key: r, offpolicy_fraction: 0.001", "none of the data.train_batch_size");
  refused("{support: union}", given, "objective.support = union");
  refused("{}",
          given +
              ", teacher_prompt_template: '{prompt} {sibling}', "
              "teacher_prompt_missing: plain, max_response_length: 100",
          "{sibling}");
}

TEST(TrainConfig, TheTeachersPromptIsAKeyOrATemplate) {
  const auto check = [](const std::string& data, const std::string& more = "") {
    TrainConfig config;
    return Check(Concat("{}\ndata: {max_response_length: 100, ", data, "}\n", more), &config);
  };
  const auto refused = [&](const std::string& data, const std::string& says,
                           const std::string& more = "") {
    EXPECT_ERROR(check(data, more), absl::StatusCode::kInvalidArgument, says);
  };
  EXPECT_OK(check("teacher_prompt_key: hint"));
  EXPECT_OK(check("teacher_prompt_template: '{prompt} {sibling}', teacher_prompt_missing: skip"));
  refused("teacher_prompt_key: hint, teacher_prompt_template: '{prompt}'", "give one of them");
  refused("teacher_prompt_template: 'Solution: {solution}'", "must contain {prompt}");
  refused("teacher_prompt_missing: plain", "need data.teacher_prompt_key or");
  refused("max_teacher_prompt_length: 5", "need data.teacher_prompt_key or");
  const std::string sibling = "teacher_prompt_template: '{prompt} {sibling}', ";
  refused(sibling + "train_batch_size: 72", "teacher_prompt_missing must be plain or skip");
  refused(sibling + "teacher_prompt_missing: plain", "rollout.n = 1", "rollout: {n: 1}");
  refused(sibling + "teacher_prompt_missing: plain, max_teacher_prompt_length: 100",
          "leaves no room beside the 100 tokens of {sibling}");
  refused(sibling + "teacher_prompt_missing: plain, val: [v]", "eval.measure = kl",
          "eval: {measure: kl}");
}

TEST(TrainConfig, TheLongestSentPromptDependsOnTheTeachersPrompt) {
  DataConfig data;
  data.max_prompt_length = 10;
  EXPECT_EQ(data.LongestSentPrompt(), 10);
  data.teacher_prompt_key = "hint";
  EXPECT_EQ(data.LongestSentPrompt(), 10);
  data.max_teacher_prompt_length = 7;
  EXPECT_EQ(data.LongestSentPrompt(), 7);
  data.teacher_prompt_missing = MissingTeacherPrompt::kPlain;
  EXPECT_EQ(data.LongestSentPrompt(), 10);
  data.max_teacher_prompt_length = 30;
  EXPECT_EQ(data.LongestSentPrompt(), 30);
}

// Every objective that reads the behavior policy is refused, alone and as a term; the others stay
// allowed.
TEST(TrainConfig, TruncatedSamplingIsRefusedWhereTheSampledTokenIsAnEstimate) {
  for (const ObjectiveInfo& info : AllObjectives()) {
    if (info.needs & kNeedsAdvantage) continue;  // the section reward adds it
    for (const bool as_term : {false, true}) {
      const bool whole = (info.needs & kNeedsFullVocabulary) != 0;
      if (as_term && (whole || info.name == "ta_opd")) continue;
      const std::string name(info.name);
      SCOPED_TRACE(name);
      const std::string objective =
          as_term ? "{terms: [{name: ta_opd}, {name: " + name + "}]}" : "{name: " + name + "}";
      for (const char* sampling : {"{top_p: 0.9}", "{top_k: 20}"}) {
        TrainConfig config;
        const absl::Status checked = Check(Concat(objective, "\nrollout: ", sampling), &config);
        if ((info.needs & kReadsBehavior) == 0) {
          EXPECT_OK(checked);
          continue;
        }
        EXPECT_ERROR(checked, absl::StatusCode::kInvalidArgument,
                     "the sampled distribution is truncated, and " + name);
      }
      TrainConfig config;
      EXPECT_OK(Check(objective + "\nrollout: {top_p: 1, top_k: 0}", &config));
    }
  }
}

TEST(TrainConfig, OverlongPromptsAreDroppedOrCut) {
  TrainConfig config;
  config.student.model = "m";
  for (const Truncation truncation :
       {Truncation::kError, Truncation::kLeft, Truncation::kRight, Truncation::kMiddle}) {
    config.data.truncation = truncation;
    config.data.filter_overlong_prompts = false;
    EXPECT_OK(CheckTrainConfig(config));
    config.data.filter_overlong_prompts = true;
    EXPECT_EQ(CheckTrainConfig(config).ok(), config.data.truncation == Truncation::kError);
  }
  EXPECT_ERROR(ApplyOverride("data.truncation=lef", DescribeSettings(config)),
               absl::StatusCode::kInvalidArgument,
               "data.truncation = \"lef\": must be one of error, left, right, middle (did you mean "
               "\"left\"?)");
}

}  // namespace
}  // namespace taopd
