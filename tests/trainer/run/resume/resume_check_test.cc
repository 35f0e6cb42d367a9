// Tests that a resumed run may change exactly the settings that are declared so.
#include "trainer/run/resume/resume_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <variant>

#include "common/config/yaml.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/config/sft_config.h"
#include "trainer/config/train_config.h"

namespace taopd::testing {
namespace {

// Gives a setting another value, whatever its type.
void Change(const SettingPointer& pointer) {
  struct {
    void operator()(bool* v) { *v = !*v; }
    void operator()(int64_t* v) { *v += 1; }
    void operator()(double* v) { *v += 0.25; }
    void operator()(std::string* v) { *v += "x"; }
    void operator()(std::vector<std::string>* v) { v->push_back("x"); }
    void operator()(std::vector<int64_t>* v) { v->push_back(1); }
    void operator()(std::vector<double>* v) { v->push_back(1); }
    void operator()(SectionList* v) { v->Reset(v->size() + 1); }
    void operator()(EnumSetting* v) {
      EXPECT_OK(v->Set(v->words().front() == v->word() ? v->words().back() : v->words().front()));
    }
    void operator()(std::optional<int64_t>* v) { *v = v->value_or(0) + 1; }
    void operator()(std::optional<double>* v) { *v = v->value_or(0) + 0.25; }
  } change;
  std::visit(change, pointer);
}

// The settings that determine the computation of a step. A new setting that is not declared
// changeable belongs here as well.
const char kFixedInTraining[] =
    "data.train_weights data.prompt_key data.answer_key data.source_key data.system_prompt "
    "data.prompt_template data.apply_chat_template data.chat_template_kwargs "
    "data.train_batch_size data.max_prompt_length data.max_response_length "
    "data.filter_overlong_prompts data.truncation data.add_special_tokens data.shuffle "
    "data.teacher_prompt_key data.teacher_prompt_template data.teacher_prompt_missing "
    "data.max_teacher_prompt_length data.response_key data.offpolicy_fraction "
    "dist.deterministic dist.shares objective.name objective.terms objective.support "
    "objective.student_top_k objective.beta objective.entropy_threshold objective.max_rho "
    "objective.mask_rho_below objective.mask_rho_above objective.veto_rho_below "
    "objective.aggregation optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay "
    "optimizer.max_grad_norm optimizer.schedule optimizer.warmup_steps optimizer.min_lr_ratio "
    "optimizer.moments optimizer.master reward.grader reward.answer_pattern "
    "reward.require_stop reward.weight reward.baseline reward.scale reward.clip_low "
    "reward.clip_high rollout.n rollout.temperature rollout.top_p rollout.top_k "
    "rollout.mask_truncated run.seed student.model student.dtype student.lora.rank "
    "student.lora.alpha student.lora.target_modules student.lora.init "
    "student.lora.modules_to_save teacher.top_k teacher.temperature teacher.model "
    "teacher.kind teacher.weights teacher.ema teacher.refresh_every teachers "
    "trainer.async_steps trainer.mini_batch_size";
const char kFixedInSft[] =
    "data.prompt_key data.response_key data.messages_key data.assistant_turns "
    "data.chat_template_kwargs data.max_length data.add_special_tokens data.append_eos "
    "data.shuffle model.init model.config model.dtype model.lora.rank model.lora.alpha "
    "model.lora.target_modules model.lora.init model.lora.modules_to_save optimizer.lr "
    "optimizer.betas optimizer.eps optimizer.weight_decay optimizer.max_grad_norm "
    "optimizer.schedule optimizer.warmup_steps optimizer.min_lr_ratio optimizer.moments "
    "optimizer.master run.seed trainer.batch_size";

template <typename Config>
void ExpectEverySettingBehavesAsDeclared(const std::string& names) {
  std::istringstream words(names);
  const std::set<std::string> fixed(std::istream_iterator<std::string>(words), {});
  const std::string reference = ReadFile(SourcePath("docs/configuration.md"));
  Config before;
  const RunFacts recorded = FactsOf(DescribeSettings(before));
  ASSERT_OK(CheckResume(recorded, recorded, {}));
  std::set<std::string> unseen = fixed;
  for (size_t i = 0; i < recorded.size(); ++i) {
    Config config;
    const SettingTable table = DescribeSettings(config);
    const Setting& setting = table.settings()[i];
    Change(setting.pointer);
    const RunFacts present = FactsOf(DescribeSettings(config));
    const absl::Status same = CheckResume(recorded, present, {});
    const bool is_fixed = fixed.contains(setting.path);
    unseen.erase(setting.path);
    EXPECT_EQ(setting.may_change, !is_fixed) << setting.path;
    // The reference says so in the setting's row.
    const std::string row = "| `" + setting.path + "` |";
    size_t at = reference.find(row), num_rows = 0;
    bool documented = false;
    for (; at != std::string::npos; at = reference.find(row, at + 1), ++num_rows) {
      const std::string line = reference.substr(at, reference.find('\n', at) - at);
      documented |= line.ends_with("| may change |") == setting.may_change;
    }
    EXPECT_GT(num_rows, 0u) << setting.path << " is not in docs/configuration.md";
    EXPECT_TRUE(documented) << setting.path << ": docs/configuration.md says otherwise";
    if (!is_fixed) {
      EXPECT_OK(same);
      continue;
    }
    EXPECT_ERROR(same, kInvalidArgument, setting.path);
    EXPECT_THAT(same.message(), HasSubstr(recorded[i].value)) << setting.path;
    EXPECT_THAT(same.message(), HasSubstr(present[i].value)) << setting.path;
    EXPECT_OK(CheckResume(recorded, present, {"other", setting.path}));
    EXPECT_FALSE(CheckResume(recorded, present, {"other"}).ok()) << setting.path;
  }
  EXPECT_EQ(unseen, std::set<std::string>()) << "no such settings";
}

TEST(ResumeCheck, EverySettingBehavesAsDeclaredAndDocumented) {
  ExpectEverySettingBehavesAsDeclared<TrainConfig>(kFixedInTraining);
  ExpectEverySettingBehavesAsDeclared<SftConfig>(kFixedInSft);
}

// Names that only one side has are not compared.
TEST(ResumeCheck, AllDifferencesAreNamedEachOnALine) {
  EXPECT_OK(CheckResume({{"a", "1", false}, {"gone", "1", false}},
                        {{"a", "1", false}, {"new", "2", false}}, {}));
  const absl::Status status =
      CheckResume({{"a", "1", false}, {"b", "1", false}, {"c", "1", false}},
                  {{"a", "2", false}, {"b", "1", false}, {"c", "3", false}}, {});
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::MatchesRegex("a = 2: [^\n]*--allow-change a\nc = 3: [^\n]*--allow-change c"));
}

TEST(ResumeCheck, AMisspeltPermissionIsRefused) {
  EXPECT_OK(CheckAllowedNames({"optimizer.lr"}, {"run.seed", "optimizer.lr"}));
  EXPECT_ERROR(CheckAllowedNames({"optimizer.lrr"}, {"run.seed", "optimizer.lr"}), kInvalidArgument,
               "did you mean \"optimizer.lr\"?");
}

TEST(ResumeCheck, TheRecordReadsBack) {
  const TempDir dir;
  WriteFile(dir.File("identity.json"), WriteRunFacts({{"a.b", "\"x\"", true}, {"c", "", false}}));
  ASSERT_OK_AND_ASSIGN(const RunFacts facts, ReadRunFacts(dir.File("identity.json")));
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].name, "a.b");
  EXPECT_EQ(facts[0].value, "\"x\"");
  EXPECT_EQ(facts[1].value, "");
  WriteFile(dir.File("identity.json"), "{\"a\": 1}");
  EXPECT_ERROR(ReadRunFacts(dir.File("identity.json")), kDataLoss,
               "the value of a is not a string");
}

TEST(ChangedSettings, AreThoseThatDifferAndReadBack) {
  TrainConfig config, defaults, read;
  EXPECT_EQ(ChangedSettings(FactsOf(DescribeSettings(config)), FactsOf(DescribeSettings(defaults))),
            "");
  config.run.name = "a run: #1";
  config.optimizer.lr = 3e-5;
  config.data.train = {"a.jsonl", "b.jsonl"};
  config.objective.terms = {{"ta_opd", 1.0}, {"jsd", 0.5}};
  const std::string changed =
      ChangedSettings(FactsOf(DescribeSettings(config)), FactsOf(DescribeSettings(defaults)));
  EXPECT_EQ(std::count(changed.begin(), changed.end(), '\n'), 4) << changed;
  std::istringstream lines(changed);
  for (std::string line; std::getline(lines, line);)
    EXPECT_OK(ApplyOverride(line, DescribeSettings(read)));
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(read)), WriteYamlSettings(DescribeSettings(config)));
}

}  // namespace
}  // namespace taopd::testing
