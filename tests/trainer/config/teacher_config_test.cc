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

TEST(TeacherConfigTest, TheStudentMayBeATeacher) {
  const auto accepted = [](const std::string& text) { EXPECT_OK(ReadTeachers(text)); };
  accepted("teacher: {kind: self}");
  accepted("teacher: {kind: self, weights: ema, ema: 0.5}");
  accepted("teacher: {kind: self, refresh_every: 5}");
  accepted("teacher: {kind: self, connect_timeout_s: 1800}");
  accepted(
      "{teacher: {weights: live}, teachers: [{name: a, kind: self, sources: [s]}, "
      "{name: b, endpoints: [x]}]}");
  const auto refused = [](const std::string& text, const std::string& says) {
    EXPECT_ERROR(ReadTeachers(text), absl::StatusCode::kInvalidArgument, says);
  };
  refused("teacher: {weights: live}", "are for a teacher of kind self");
  refused("teacher: {ema: 0.5}", "are for a teacher of kind self");
  refused("teacher: {refresh_every: 1}", "are for a teacher of kind self");
  refused("teacher: {kind: self, ema: 0.5}", "teacher.ema = 0.5: is for teacher.weights ema");
  refused("teacher: {kind: self, weights: live, refresh_every: 3}",
          "teacher.refresh_every = 3: is for teacher.weights start, not live");
  for (const char* of_servers :
       {"endpoints: [x]", "model: m", "revision: r", "timeout_s: 5", "outage_budget_s: 5",
        "hedge_after_s: 1", "max_in_flight: 5", "tls_ca_file: f", "api_key_env: K",
        "api_key_file: f", "cache_dir: d", "cache_gb: 1"}) {
    refused(Concat("teacher: {kind: self, ", of_servers, "}"),
            "is for servers, and teacher.kind is self");
  }
  refused("{teacher: {kind: self}, teachers: [{name: a, endpoints: [x]}]}",
          "give an entry of it the kind");
  refused("teachers: [{name: a, kind: self, endpoints: [x]}]", "kind self has no endpoints");
  refused("teachers: [{name: a, kind: self, sources: [s]}, {name: b, kind: self}]",
          "are both of kind self");
}

}  // namespace
}  // namespace taopd
