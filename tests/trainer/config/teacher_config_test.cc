// Tests of teachers that contradict each other.
#include "common/config/yaml.h"
#include "tests/support/status_matchers.h"
#include "trainer/config/train_config.h"

namespace taopd {
namespace {

absl::StatusOr<TrainConfig> ReadTeachers(const std::string& text) {
  TrainConfig config;
  config.student.model = "m";
  TAOPD_RETURN_IF_ERROR(ReadYamlSettings(text, "c.yaml", DescribeSettings(config)));
  TAOPD_RETURN_IF_ERROR(CheckTrainConfig(config));
  return config;
}

TEST(TeacherConfigTest, SeveralTeachers) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, ReadTeachers(R"(
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

TEST(TeacherConfigTest, ContradictionsAreNamed) {
  const auto refused = [](const std::string& text, const std::string& says) {
    EXPECT_ERROR(ReadTeachers(text), absl::StatusCode::kInvalidArgument, says);
  };
  refused(
      "teachers: [{name: a, endpoints: [x], sources: [s]}, {name: b, endpoints: [x], "
      "sources: [t, s]}]",
      "the source \"s\" is taught by a and b");
  refused("teachers: [{name: a, endpoints: [x]}, {name: b, endpoints: [x]}]", "both lack sources");
  refused("teachers: [{name: a, endpoints: [x]}, {name: a, endpoints: [x], sources: [s]}]",
          "two entries of the name a");
  refused("teachers: [{name: \"a b\", endpoints: [x]}]", "teachers[0].name = \"a b\"");
  refused("teachers: [{name: a}]", "teachers[0].endpoints of a");
  refused("teachers: [{name: a, endpoints: [x], weight: -1}]", "weight");
  refused("{teacher: {endpoints: [\"grpc://a:1\"]}, teachers: [{name: a, endpoints: [x]}]}",
          "teacher.endpoints");
  refused("{teacher: {revision: r}, teachers: [{name: a, endpoints: [x]}]}", "teacher.revision");
  refused("teacher: {cache_only: true}", "needs teacher.cache_dir");
  refused("teacher: {tls_cert_file: x}", "teacher.tls_key_file");
  refused("teacher: {api_key_env: x, api_key_file: y}", "give one of them");
  refused("teacher: {hedge_after_s: -1}", "teacher.hedge_after_s = -1");
  refused("teacher: {endpoints: []}", "at least one server");
}

}  // namespace
}  // namespace taopd
