#include "server/serving/sampling_defaults.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class SamplingDefaultsTest : public ::testing::Test {
 protected:
  absl::StatusOr<SamplingParams> Load(const std::string& text) {
    WriteFile(dir_.File("generation_config.json"), text);
    return LoadSamplingDefaults(dir_.path());
  }

  const TempDir dir_;
};

TEST_F(SamplingDefaultsTest, FileReplacesDefaults) {
  ASSERT_OK_AND_ASSIGN(const auto defaults,
                       Load("{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.125,"
                            "\"repetition_penalty\":1.05,\"eos_token_id\":[1,2],\"do_sample\":true,"
                            "\"presence_penalty\":1.5,\"transformers_version\":\"4.51.0\"}"));
  EXPECT_EQ(defaults.temperature, 0.6f);
  EXPECT_EQ(defaults.top_p, 0.95f);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.min_p, 0.125f);
  EXPECT_EQ(defaults.repetition_penalty, 1.05f);
  EXPECT_EQ(defaults.presence_penalty, 0.0f);  // vLLM takes no default of this one
  EXPECT_TRUE(defaults.stop_token_ids.empty());
}

TEST_F(SamplingDefaultsTest, AbsentValuesAndFilesChangeNothing) {
  ASSERT_OK_AND_ASSIGN(const auto silent, Load("{\"temperature\":null}"));
  EXPECT_EQ(silent.temperature, 1.0f);
  ASSERT_OK_AND_ASSIGN(const auto no_file, LoadSamplingDefaults(dir_.File("no_such_dir")));
  EXPECT_EQ(no_file.top_k, 0);
}

TEST_F(SamplingDefaultsTest, BadValuesNameFileKeyAndValue) {
  EXPECT_ERROR(Load("{\"temperature\":\"warm\"}"), kInvalidArgument,
               "generation_config.json: temperature is \"warm\": must be a number");
  EXPECT_ERROR(Load("{\"top_k\":1.5}"), kInvalidArgument, "top_k is 1.5: must be an integer");
  EXPECT_ERROR(Load("{\"top_p\":1.5}"), kInvalidArgument,
               "generation_config.json: top_p must be in (0, 1], got 1.5");
  EXPECT_ERROR(Load("[]"), kInvalidArgument, "must be a JSON object");
}

}  // namespace
}  // namespace taopd::testing
