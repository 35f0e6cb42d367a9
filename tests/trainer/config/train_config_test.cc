// Tests of settings that depend on each other. bad_settings_test.cc has what a single value may be.
#include "trainer/config/train_config.h"

#include <set>

#include "common/config/yaml.h"
#include "taopd/objective/check_objective.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

absl::StatusOr<TrainConfig> Read(const std::string& yaml) {
  TrainConfig config;
  config.student.model = "m";
  TAOPD_RETURN_IF_ERROR(ReadYamlSettings(yaml, "c.yaml", DescribeSettings(config)));
  TAOPD_RETURN_IF_ERROR(CheckTrainConfig(config));
  return config;
}

void ExpectRefused(const std::string& yaml, const std::string& says) {
  EXPECT_ERROR(Read(yaml), kInvalidArgument, says);
}

TEST(TrainConfig, FirstGivenKnowsItsSettings) {
  TeacherConfig teacher;
  EXPECT_EQ(FirstGiven(teacher, {"model", "timeout_s"}), "");
  teacher.timeout_s += 1;
  EXPECT_EQ(FirstGiven(teacher, {"model", "timeout_s"}), "timeout_s");
  EXPECT_DEATH(FirstGiven(teacher, {"modle"}), "check failed: i < given");
}

TEST(TrainConfig, ObjectiveIsANameOrTerms) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, Read("{}"));
  EXPECT_EQ(config.objective.name, "ta_opd");
  ASSERT_OK_AND_ASSIGN(TrainConfig terms,
                       Read("objective: {terms: [{name: jsd, weight: 2}, {name: sampled_token}], "
                            "beta: 0.25, max_rho: 3}"));
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
    ExpectRefused("objective: " + objective, says);
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
  refused("{student_top_k: 3}", "objective.student_top_k = 3 needs objective.support = student");
  refused("{full_kl_rows: -1}", "objective.full_kl_rows = -1");
  EXPECT_OK(Read("objective: {terms: [{name: full}, {name: sampled_token, weight: 0.1}]}"));
}

TEST(TrainConfig, ARewardAddsATerm) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig config,
                       Read("objective: {name: ta_opd, max_rho: 3}\n"
                            "reward: {grader: math, weight: 0.5, clip_high: 0.28}"));
  const ObjectiveTerms both = config.LossTerms();
  ASSERT_EQ(both.num_terms, 2);
  EXPECT_EQ(NameOf(both), "ta_opd + 0.5 policy_gradient");
  EXPECT_EQ(both.term[1].objective.max_rho, 3);
  EXPECT_EQ(both.term[1].objective.clip_high, 0.28);
  ASSERT_OK_AND_ASSIGN(const TrainConfig alone,
                       Read("objective: {name: policy_gradient}\n"
                            "reward: {grader: math, weight: 2}\nteacher: {kind: none}"));
  EXPECT_EQ(NameOf(alone.LossTerms()), "2 policy_gradient");
}

TEST(TrainConfig, FixedSharesNeedNumbersThatNoMachineChooses) {
  const std::string fixed = "dist: {deterministic: true, shares: 8}\ntrainer: ";
  EXPECT_OK(Read(fixed + "{num_threads: 2}"));
  ExpectRefused(fixed + "{num_threads: 0}", "trainer.num_threads = 0");
  ExpectRefused(fixed + "{num_threads: 2, micro_batch_tokens: auto}",
                "trainer.micro_batch_tokens = auto");
}

TEST(TrainConfig, SettingsThatNothingReadsAreRefused) {
  ExpectRefused("trainer: {best_is: largest}", "trainer.best_is needs trainer.best_metric");
  ExpectRefused("optimizer: {min_lr_ratio: 0.1}",
                "optimizer.min_lr_ratio = 0.1 needs optimizer.schedule = linear or cosine");
  EXPECT_OK(Read("optimizer: {min_lr_ratio: 0.1, schedule: cosine}"));
  ExpectRefused("dist: {shares: 8}", "dist.shares = 8 needs dist.deterministic");
  for (const char* of_servers :
       {"weights_dir: d", "weight_transfer: stream", "on_update: restart", "max_in_flight: 5",
        "timeout_s: 5", "outage_budget_s: 5", "connect_timeout_s: 5", "tls_ca_file: f",
        "api_key_env: K", "api_key_file: f"}) {
    ExpectRefused(Concat("rollout: {", of_servers, "}"), "needs rollout.endpoints, which is empty");
  }
}

TEST(TrainConfig, ImpossibleRewardsAreRefused) {
  ExpectRefused("objective: {name: policy_gradient}",
                "needs a reward; set reward.grader or reward.url");
  ExpectRefused(
      "objective: {terms: [{name: ta_opd}, {name: policy_gradient}]}\nreward: {grader: math}",
      "the section reward adds it");
  ExpectRefused(
      "objective: {terms: [{name: ta_opd}, {name: jsd}, {name: mopd}, {name: vopd}]}\n"
      "reward: {grader: math}",
      "the reward adds one");
  ExpectRefused("teacher: {kind: none}", "teacher.kind = none: the objective needs a teacher");
  ExpectRefused("teachers: [{name: a, kind: none}]", "kind none teaches nothing");
  ExpectRefused("objective: {clip_low: 0.2}", "clip_low");
  const auto reward = [](const std::string& section, const std::string& says,
                         const std::string& more = "") {
    ExpectRefused(Concat("reward: {", section, "}\n", more), says);
  };
  reward("url: 'http://a:0'", "has no port in [1, 65535]");
  reward("grader: math, url: 'http://a'", "give one of them");
  reward("weight: 2", "reward.weight needs reward.grader or reward.url");
  reward("scale: none", "reward.scale needs reward.grader or reward.url");
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
}

TEST(TrainConfig, GivenResponsesAreRefusedWhereTheSampledTokenIsAnEstimate) {
  const auto with = [](const std::string& objective, const std::string& data) {
    return Concat("objective: ", objective, "\ndata: {", data, "}");
  };
  const std::string given = "response_key: r, offpolicy_fraction: 0.25";
  int num_refused = 0;
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.traits & kNeedsAdvantage) continue;
    SCOPED_TRACE(std::string(info.name));
    const std::string yaml = with(Concat("{name: ", info.name, "}"), given);
    if ((info.traits & kReadsBehavior) == 0 || info.name == "sc_ta_opd") {
      EXPECT_OK(Read(yaml));
      continue;
    }
    ++num_refused;
    ExpectRefused(yaml, Concat("data.offpolicy_fraction = 0.25: ", info.name, " estimates"));
  }
  EXPECT_EQ(num_refused, 6);
  ExpectRefused("data: {response_key: r}", "one needs the other");
  ExpectRefused("data: {offpolicy_fraction: 0.5}", "one needs the other");
  ExpectRefused("data: {response_key: r, offpolicy_fraction: 0.001}",
                "none of the data.train_batch_size");
  ExpectRefused(with("{support: union}", given), "objective.support = union");
  ExpectRefused(with("{}", given + ", teacher_prompt_template: '{prompt} {sibling}', "
                                   "teacher_prompt_missing: plain, max_response_length: 100"),
                "{sibling}");
}

TEST(TrainConfig, TheTeachersPromptIsAKeyOrATemplate) {
  const auto with = [](const std::string& data, const std::string& more = "") {
    return Concat("data: {max_response_length: 100, ", data, "}\n", more);
  };
  const auto refused = [&](const std::string& data, const std::string& says,
                           const std::string& more = "") { ExpectRefused(with(data, more), says); };
  EXPECT_OK(Read(with("teacher_prompt_key: hint")));
  EXPECT_OK(
      Read(with("teacher_prompt_template: '{prompt} {sibling}', teacher_prompt_missing: skip")));
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
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.traits & kNeedsAdvantage) continue;  // the section reward adds it
    for (const bool as_term : {false, true}) {
      const bool whole = (info.traits & kNeedsFullVocabulary) != 0;
      if (as_term && (whole || info.name == "ta_opd")) continue;
      const std::string name(info.name);
      SCOPED_TRACE(name);
      const std::string objective =
          Concat("objective: {",
                 as_term ? "terms: [{name: ta_opd}, {name: " + name + "}]" : "name: " + name,
                 "}\nrollout: ");
      for (const char* sampling : {"{top_p: 0.9}", "{top_k: 20}"}) {
        if ((info.traits & kReadsBehavior) == 0) {
          EXPECT_OK(Read(objective + sampling));
          continue;
        }
        ExpectRefused(objective + sampling, "the sampled distribution is truncated, and " + name);
      }
      EXPECT_OK(Read(objective + "{top_p: 1, top_k: 0}"));
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
  EXPECT_ERROR(ApplyOverride("data.truncation=lef", DescribeSettings(config)), kInvalidArgument,
               "data.truncation = \"lef\": must be one of error, left, right, middle (did you mean "
               "\"left\"?)");
}

TEST(TrainConfig, SeveralTeachers) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, Read(R"(
teacher: {top_k: 8}
teachers:
- {name: math, endpoints: ["grpc://a:1", "grpc://b:1"], sources: [gsm8k, math], weight: 2}
- {name: rest, endpoints: ["vllm+http://c:1"], model: m, revision: r})"));
  ASSERT_EQ(config.teachers.size(), 2u);
  EXPECT_EQ(config.teachers[0].endpoints.size(), 2u);
  EXPECT_EQ(config.teachers[0].sources, (std::vector<std::string>{"gsm8k", "math"}));
  EXPECT_EQ(config.teachers[0].weight, 2);
  EXPECT_EQ(config.teachers[1].weight, 1);
  EXPECT_EQ(config.teachers[1].model, "m");
  EXPECT_EQ(config.teachers[0].revision, "");
  EXPECT_EQ(config.teachers[1].revision, "r");
}

TEST(TrainConfig, TeachersThatContradictEachOtherAreNamed) {
  ExpectRefused(
      "teachers: [{name: a, endpoints: [x], sources: [s]}, {name: b, endpoints: [x], "
      "sources: [t, s]}]",
      "the source \"s\" is taught by a and b");
  ExpectRefused("teachers: [{name: a, endpoints: [x]}, {name: b, endpoints: [x]}]",
                "both lack sources");
  ExpectRefused("teachers: [{name: a, endpoints: [x]}, {name: a, endpoints: [x], sources: [s]}]",
                "two entries of the name a");
  ExpectRefused("teachers: [{name: \"a b\", endpoints: [x]}]", "teachers[0].name = \"a b\"");
  ExpectRefused("teachers: [{name: a}]", "teachers[0].endpoints of a");
  ExpectRefused("teachers: [{name: a, endpoints: [x], weight: -1}]", "weight");
  ExpectRefused("{teacher: {endpoints: [\"grpc://a:1\"]}, teachers: [{name: a, endpoints: [x]}]}",
                "teacher.endpoints");
  ExpectRefused("{teacher: {revision: r}, teachers: [{name: a, endpoints: [x]}]}",
                "teacher.revision");
  ExpectRefused("teacher: {cache_only: true}", "needs teacher.cache_dir");
  ExpectRefused("teacher: {tls_cert_file: x}", "teacher.tls_key_file");
  ExpectRefused("teacher: {api_key_env: x, api_key_file: y}", "give one of them");
  ExpectRefused("teacher: {hedge_after_s: -1}", "teacher.hedge_after_s = -1");
  ExpectRefused("teacher: {endpoints: []}", "at least one server");
}

TEST(TrainConfig, TheStudentMayBeATeacher) {
  EXPECT_OK(Read("teacher: {kind: self}"));
  EXPECT_OK(Read("teacher: {kind: self, weights: ema, ema: 0.5}"));
  EXPECT_OK(Read("teacher: {kind: self, refresh_every: 5}"));
  EXPECT_OK(Read("teacher: {kind: self, connect_timeout_s: 1800}"));
  EXPECT_OK(
      Read("{teacher: {weights: live}, teachers: [{name: a, kind: self, sources: [s]}, "
           "{name: b, endpoints: [x]}]}"));
  ExpectRefused("teacher: {weights: live}", "are for a teacher of kind self");
  ExpectRefused("teacher: {ema: 0.5}", "are for a teacher of kind self");
  ExpectRefused("teacher: {refresh_every: 1}", "are for a teacher of kind self");
  ExpectRefused("teacher: {kind: self, ema: 0.5}", "teacher.ema = 0.5 needs teacher.weights = ema");
  ExpectRefused("teacher: {kind: self, weights: live, refresh_every: 3}",
                "teacher.refresh_every = 3 needs teacher.weights = start, not live");
  for (const char* of_servers :
       {"endpoints: [x]", "model: m", "revision: r", "timeout_s: 5", "outage_budget_s: 5",
        "hedge_after_s: 1", "max_in_flight: 5", "tls_ca_file: f", "api_key_env: K",
        "api_key_file: f", "cache_dir: d", "cache_gb: 1"}) {
    ExpectRefused(Concat("teacher: {kind: self, ", of_servers, "}"),
                  "needs teacher.kind = server, not self");
  }
  ExpectRefused("{teacher: {kind: self}, teachers: [{name: a, endpoints: [x]}]}",
                "give an entry of it the kind");
  ExpectRefused("teachers: [{name: a, kind: self, endpoints: [x]}]", "kind self has no endpoints");
  ExpectRefused("teachers: [{name: a, kind: self, sources: [s]}, {name: b, kind: self}]",
                "are both of kind self");
}

// A run that continues within a step keeps the scores and rewards that it has stored unless one of
// these settings has changed, so a new setting of these sections must say what it is.
TEST(TrainConfig, FixedSettingsOfTheTeacherAndOfRewardsDecideScoresUnlessListed) {
  const std::set<std::string> others = {// This decides the form of the scores.
                                        "teacher.top_k",
                                        // The revision tells whether it is another teacher.
                                        "teacher.model",
                                        // These decide the weights of later steps.
                                        "teacher.ema", "teacher.refresh_every",
                                        // The loss reads these.
                                        "reward.weight", "reward.clip_low", "reward.clip_high"};
  TrainConfig config;
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    const std::string& path = setting.path;
    const bool is_of_scores = path.starts_with("teacher") || path.starts_with("reward.") ||
                              path.find("teacher_prompt") != std::string::npos;
    EXPECT_EQ(setting.decides_scores, is_of_scores && !setting.may_change && !others.contains(path))
        << path;
  }
}

}  // namespace
}  // namespace taopd::testing
