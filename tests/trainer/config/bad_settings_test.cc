// The settings of rewards, adapters, teachers that are the student, teachers' prompts and mixtures:
// each is refused by name for a value of another type, and for a value out of its range.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "common/config/yaml.h"
#include "tests/support/status_matchers.h"
#include "trainer/config/train_config.h"

namespace taopd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BadValue {
  std::string path;
  std::string value;  // in YAML
  std::string says;   // what the message has after the path
};

// Values of another type.
const BadValue kWrongTypes[] = {
    {"reward.grader", "[math]", "a single value is expected"},
    {"reward.answer_pattern", "[x]", "a single value is expected"},
    {"reward.require_stop", "3", "is not true or false"},
    {"reward.url", "[http://a]", "a single value is expected"},
    {"reward.weight", "much", "is not a number"},
    {"reward.baseline", "[group]", "a single value is expected"},
    {"reward.scale", "[std]", "a single value is expected"},
    {"reward.clip_low", "low", "is not a number"},
    {"reward.clip_high", "[0.2]", "a single value is expected"},
    {"reward.timeout_s", "soon", "is not a number"},
    {"reward.outage_budget_s", "true", "is not a number"},
    {"reward.connect_timeout_s", "[1]", "a single value is expected"},
    {"reward.max_in_flight", "1.5", "is not an integer"},
    {"reward.api_key_env", "[KEY]", "a single value is expected"},
    {"student.lora.rank", "1.5", "is not an integer"},
    {"student.lora.alpha", "large", "is not a number"},
    {"student.lora.target_modules", "q_proj", "a list is expected"},
    {"student.lora.modules_to_save", "norm", "a list is expected"},
    {"student.lora.init", "[default]", "a single value is expected"},
    {"data.teacher_prompt_key", "[hint]", "a single value is expected"},
    {"data.teacher_prompt_template", "[x]", "a single value is expected"},
    {"data.teacher_prompt_missing", "[plain]", "a single value is expected"},
    {"data.max_teacher_prompt_length", "long", "is not an integer"},
    {"data.offpolicy_fraction", "half", "is not a number"},
    {"teacher.kind", "[self]", "a single value is expected"},
    {"teacher.weights", "[ema]", "a single value is expected"},
    {"teacher.ema", "slow", "is not a number"},
    {"teacher.refresh_every", "0.5", "is not an integer"},
    {"rollout.mask_truncated", "often", "is not true or false"},
};

// Values of the right type that are out of range, and words that are not known. A setting that
// takes any text has none here.
const BadValue kWrongValues[] = {
    {"reward.grader", "maths", "did you mean \"math\"?"},
    {"reward.url", "ftp://a", "must begin with http:// or https://"},
    {"reward.weight", "0", "must be finite and not 0"},
    {"reward.weight", ".nan", "is not a number"},
    {"reward.weight", ".inf", "must be finite and not 0"},
    {"reward.baseline", "mean", "must be one of none, group, leave_one_out"},
    {"reward.scale", "variance", "must be one of none, std"},
    {"reward.clip_low", "1.5", "must be from 0 to 1"},
    {"reward.clip_low", ".nan", "is not a number"},
    {"reward.clip_high", "-1", "must be at least 0"},
    {"reward.clip_high", ".nan", "is not a number"},
    {"reward.timeout_s", "0", "must be more than 0"},
    {"reward.timeout_s", ".nan", "is not a number"},
    {"reward.outage_budget_s", "-1", "must be at least 0"},
    {"reward.connect_timeout_s", "0", "must be more than 0"},
    {"reward.max_in_flight", "0", "must be between 1 and 1024"},
    {"reward.max_in_flight", "1025", "must be between 1 and 1024"},
    {"student.lora.rank", "-1", "must be between 0 and 65536"},
    {"student.lora.rank", "65537", "must be between 0 and 65536"},
    {"student.lora.alpha", "0", "must be finite and above 0"},
    {"student.lora.alpha", ".inf", "must be finite and above 0"},
    {"student.lora.alpha", ".nan", "is not a number"},
    {"student.lora.target_modules", "[lm_head]", "\"lm_head\" is not one of all-linear"},
    {"student.lora.target_modules", "[q_proj, q_proj]", "\"q_proj\" occurs twice"},
    {"student.lora.target_modules", "[]", "must name at least one module"},
    {"student.lora.modules_to_save", "[score]", "\"score\" is not one of embed_tokens, lm_head"},
    {"student.lora.modules_to_save", "[norm, norm]", "\"norm\" occurs twice"},
    {"student.lora.init", "pissa", "must be one of default, gaussian"},
    {"data.teacher_prompt_template", "no prompt", "must contain {prompt}"},
    {"data.teacher_prompt_missing", "drop", "must be one of error, plain, skip"},
    {"data.max_teacher_prompt_length", "-1", "must be at least 0"},
    {"data.offpolicy_fraction", "-0.1", "must be between 0 and 1"},
    {"data.offpolicy_fraction", "1.5", "must be between 0 and 1"},
    {"data.offpolicy_fraction", ".nan", "is not a number"},
    {"teacher.kind", "student", "must be one of server, self, none"},
    {"teacher.weights", "best", "must be one of start, ema, live"},
    {"teacher.ema", "1", "must be in [0, 1)"},
    {"teacher.ema", "-0.5", "must be in [0, 1)"},
    {"teacher.ema", ".nan", "is not a number"},
    {"teacher.refresh_every", "-1", "must be at least 0"},
};

const char* const kAnyText[] = {"reward.answer_pattern", "reward.api_key_env",
                                "data.teacher_prompt_key"};

bool IsCovered(const std::string& path) {
  for (const char* prefix : {"reward.", "student.lora.", "data.teacher_prompt_"}) {
    if (path.starts_with(prefix)) return true;
  }
  for (const char* one :
       {"data.max_teacher_prompt_length", "data.offpolicy_fraction", "teacher.kind",
        "teacher.weights", "teacher.ema", "teacher.refresh_every", "rollout.mask_truncated"}) {
    if (path == one) return true;
  }
  return false;
}

// Reads the one setting and checks the whole configuration.
absl::Status ReadOne(const BadValue& bad) {
  std::string text = bad.value;
  for (size_t end = bad.path.size(); end != std::string::npos;) {
    const size_t dot = bad.path.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    text = Concat("{", bad.path.substr(begin, end - begin), ": ", text, "}");
    end = dot;
  }
  TrainConfig config;
  config.student.model = "m";
  TAOPD_RETURN_IF_ERROR(ReadYamlSettings(text, "c.yaml", DescribeSettings(config)));
  return CheckTrainConfig(config);
}

void ExpectRefused(const BadValue& bad) {
  const absl::Status status = ReadOne(bad);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.path << " = " << bad.value;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(bad.path), HasSubstr(bad.says)))
      << bad.path << " = " << bad.value;
}

TEST(BadSettings, ValuesOfAnotherTypeAreRefusedByName) {
  for (const BadValue& bad : kWrongTypes) ExpectRefused(bad);
}

TEST(BadSettings, ValuesOutOfRangeAreRefusedByNameWithTheLimit) {
  for (const BadValue& bad : kWrongValues) ExpectRefused(bad);
}

TEST(BadSettings, TheTablesHaveEverySetting) {
  std::set<std::string> typed, bounded(std::begin(kAnyText), std::end(kAnyText));
  for (const BadValue& bad : kWrongTypes) typed.insert(bad.path);
  for (const BadValue& bad : kWrongValues) bounded.insert(bad.path);
  TrainConfig config;
  size_t num_settings = 0;
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    if (!IsCovered(setting.path)) continue;
    ++num_settings;
    EXPECT_TRUE(typed.contains(setting.path)) << setting.path;
    const bool is_bool = std::holds_alternative<bool*>(setting.value);
    EXPECT_TRUE(is_bool || bounded.contains(setting.path)) << setting.path;
  }
  EXPECT_EQ(num_settings, typed.size());
}

}  // namespace
}  // namespace taopd
