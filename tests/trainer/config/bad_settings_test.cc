// Every setting is refused by name for a value of another type, and those of rewards, adapters,
// teachers that are the student, teachers' prompts and mixtures for a value out of their range.

#include <algorithm>
#include <set>

#include "common/config/yaml.h"
#include "tests/support/status_matchers.h"
#include "trainer/config/train_config.h"

namespace taopd::testing {
namespace {

struct BadValue {
  std::string path;
  std::string value;  // in YAML
  std::string says;   // what the message has after the path
};

// Returns a value in YAML that is of another type than a setting, and what the message says of it.
struct WrongType {
  using Result = std::pair<const char*, const char*>;
  Result operator()(bool*) const { return {"3", "is not true or false"}; }
  Result operator()(int64_t*) const { return {"1.5", "is not an integer"}; }
  Result operator()(std::optional<int64_t>*) const { return {"1.5", "is not an integer"}; }
  Result operator()(double*) const { return {"much", "is not a number"}; }
  Result operator()(std::optional<double>*) const { return {"much", "is not a number"}; }
  Result operator()(std::string*) const { return {"[x]", "a single value is expected"}; }
  Result operator()(EnumSetting*) const { return {"[x]", "a single value is expected"}; }
  Result operator()(const void*) const { return {"x", "a list"}; }  // of any kind
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
    {"reward.timeout_s", "0", "must be between 0.001 and 86400"},
    {"rollout.timeout_s", "1e10", "must be between 0.001 and 86400"},
    {"teacher.timeout_s", ".inf", "must be between 0.001 and 86400"},
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
  for (const char* prefix :
       {"reward.", "student.lora.", "data.teacher_prompt_", "data.max_teacher_prompt_length",
        "data.offpolicy_fraction", "teacher.kind", "teacher.weights", "teacher.ema",
        "teacher.refresh_every", "rollout.timeout_s", "teacher.timeout_s"}) {
    if (path.starts_with(prefix)) return true;
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
  EXPECT_EQ(status.code(), kInvalidArgument) << bad.path << " = " << bad.value;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(bad.path), HasSubstr(bad.says)))
      << bad.path << " = " << bad.value;
}

TEST(BadSettings, ValuesOfAnotherTypeAreRefusedByName) {
  TrainConfig config;
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    const auto [value, says] = std::visit(WrongType(), setting.pointer);
    ExpectRefused({setting.path, value, says});
  }
}

TEST(BadSettings, ValuesOutOfRangeAreRefusedByNameWithTheLimit) {
  for (const BadValue& bad : kWrongValues) ExpectRefused(bad);
}

TEST(BadSettings, TheTableHasEverySetting) {
  std::set<std::string> bounded(std::begin(kAnyText), std::end(kAnyText));
  for (const BadValue& bad : kWrongValues) bounded.insert(bad.path);
  TrainConfig config;
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    if (!IsCovered(setting.path) || std::holds_alternative<bool*>(setting.pointer)) continue;
    EXPECT_EQ(bounded.erase(setting.path), 1u) << setting.path;
  }
  EXPECT_THAT(bounded, IsEmpty()) << "no such settings";
}

}  // namespace
}  // namespace taopd::testing
